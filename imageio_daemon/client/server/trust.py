# SPDX-License-Identifier: Apache-2.0
"""Which servers are believed to be who they say: authorities, and pins of public keys (docs/adr/0039)."""

import base64
import errno
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from ...net.tls_socket import TlsContext
from ..errors import LocalError, ServerFailed, Usage
from .secure_socket import SecureSocket

#: A pin as curl's --pinnedpubkey has it: 32 bytes in base64 (RFC 7469 2.4).
_PIN = re.compile(r"sha256//([A-Za-z0-9+/]{43}=)", re.ASCII)


@dataclass(frozen=True)
class Trust:
    """The rules of one session, and the certificate of this side.

    pins: hashes of public keys, of which the server must have one; empty: any.
    """

    context: TlsContext
    pins: frozenset[bytes]

    @classmethod
    def of(
        cls,
        cafile: str | None,
        pins: Iterable[str],
        *,
        insecure: bool,
        cert: str | None = None,
        key: str | None = None,
    ) -> Self:
        """Trust the CAs in cafile, or those of the system; with insecure, any server.

        cert: the file of the certificate that this side shows to servers that ask for one, and those between it and its
        authority; key: that of its key, None: the same file.

        A pin names the key itself, so with pins and no cafile no authority, name or date is asked for, as for a key
        that DNS names (RFC 7671 5.1). Raises Usage, LocalError.
        """
        keys = frozenset(key for text in pins for key in _keys(text))
        # Not create_default_context(): it loads the system's CAs, which may take 0.1 s, and TlsContext does so, too.
        rules = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if insecure or (keys and cafile is None):
            rules.check_hostname = False
            rules.verify_mode = ssl.CERT_NONE
        if key is not None and cert is None:
            raise Usage("a key needs its certificate: --cert FILE")
        own = {} if cert is None else {"cert_file": cert, "key_file": cert if key is None else key}
        try:
            context = TlsContext(rules, ca_file=cafile or "")
        except OSError as e:
            raise LocalError(f"can't load the certificates in {cafile}: {e.strerror or e}") from e
        try:
            return cls(TlsContext(rules, ca_file=cafile or "", **own) if own else context, keys)
        except OSError as e:
            files = " and ".join(dict.fromkeys(own.values()))
            raise LocalError(
                f"can't load the client's certificate and its key, which has no passphrase, from {files}: "
                f"{e.strerror or e}"
            ) from e

    def shake_hands(self, sock: SecureSocket, peer: str) -> None:
        """Complete the TLS handshake; nothing may be sent before. Raises OSError, ServerFailed if it is in doubt."""
        try:
            sock.shake_hands()
        except OSError as e:
            if e.errno == errno.EKEYREJECTED:
                raise ServerFailed(_unknown(peer, str(e.strerror), sock.tls.peer_key)) from e
            raise
        key = sock.tls.peer_key
        if self.pins and key not in self.pins:
            raise ServerFailed(
                f"{peer} has the pin {_pin(key)}, which is none of those given: ask its administrator whether it has a "
                "new key, since another host may answer in its place"
            )


def secured(trust: Callable[[], Trust], sock: socket.socket, host: str) -> socket.socket:
    """Return TLS on a connected socket, which is taken over. Raises OSError, ServerFailed for a server to doubt.

    trust: the rules, which take time to load and so are made when they are needed.
    """
    rules = trust()
    secure = SecureSocket(sock, rules.context, host)
    try:
        rules.shake_hands(secure, host)
    except BaseException:
        secure.close()
        raise
    return secure


def _unknown(peer: str, reason: str, key: bytes | None) -> str:
    return (
        f"the certificate of {peer} can't be verified: {reason}. --cafile FILE trusts the authority that signed it; "
        f"or, if the server's administrator tells the same pin, --pin {_pin(key)} trusts its key"
    )


def _keys(text: str) -> list[bytes]:
    found = [_PIN.fullmatch(pin) for pin in text.split(";")]
    if not all(found):
        raise Usage("a pin must look like sha256//BASE64, the SHA-256 of a public key; several are joined by ;")
    return [base64.b64decode(match[1]) for match in found if match]


def _pin(key: bytes | None) -> str:
    return f"sha256//{base64.b64encode(key or b'').decode()}"
