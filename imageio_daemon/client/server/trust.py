# SPDX-License-Identifier: Apache-2.0
"""Which servers the client trusts: by authorities, and by pins of public keys (docs/adr/0039)."""

import base64
import contextlib
import errno
import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from ...net.tls_socket import TlsContext
from ..connecting import closed_on_error
from ..errors import LocalError, ServerFailed, Usage
from ..stopping import Stop
from .secure_socket import SecureSocket

#: The option of the authorities for a web server that has the image. It has no pins.
SOURCE_OPTION = "--source-cafile"
#: The end of OpenSSL's reasons if the certificate is for another host (X509_verify_cert_error_string(3)).
_OTHER_NAME = ("hostname mismatch", "ip address mismatch")
#: A pin, written as for curl's --pinnedpubkey: 32 bytes in base64 (RFC 7469 2.4).
_PIN = re.compile(r"sha256//([A-Za-z0-9+/]{43}=)", re.ASCII)


@dataclass(frozen=True)
class Trust:
    """The rules of one session, and the certificate of this side.

    `pins` are hashes of public keys, of which the server must have one. Without pins, it may have any. `option` is the
    one that names the file of authorities, for messages.
    """

    context: TlsContext
    pins: frozenset[bytes]
    option: str = "--cafile"

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
        """Trust the CAs in `cafile`, or those of the system, or with `insecure` any server. Raises Usage, LocalError.

        `cert` is the file of the client's certificate, for servers that ask for one, with those between it and its
        authority. `key` is the file of its key, by default the same.

        A pin names the key itself. So with pins and without `cafile`, authority, name and date do not matter, as for a
        key in DNS (RFC 7671 5.1).
        """
        keys = frozenset(key for text in pins for key in _keys(text))
        # Not create_default_context(), which loads the system's CAs in up to 0.1 s: TlsContext loads them itself.
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
            apart = "; a key in a file of its own is given by --key FILE" if key is None else ""
            raise LocalError(
                f"can't load the client's certificate and its key, which must have no passphrase, from {files}: "
                f"{e.strerror or e}{apart}"
            ) from e

    def shake_hands(self, sock: SecureSocket, peer: str) -> None:
        """Complete the TLS handshake. Send nothing before. Raises OSError, or ServerFailed for a server in doubt."""
        try:
            sock.shake_hands()
        except OSError as e:
            if e.errno == errno.EKEYREJECTED:
                raise ServerFailed(self._unknown(peer, str(e.strerror), sock.tls.peer_key)) from e
            raise
        key = sock.tls.peer_key
        if self.pins and key not in self.pins:
            raise ServerFailed(
                f"{peer} has the pin {_pin(key)}, which is none of those given: ask its administrator whether it has a "
                "new key, since another host may answer in its place"
            )

    def secured(self, sock: socket.socket, host: str, stop: Stop) -> socket.socket:
        """Begin TLS on a connected socket. Return the socket with TLS, which takes its place, also for `stop`.

        Raises as shake_hands() does, and Stopped, and then closes the connection.
        """
        stop.discard(sock)
        with closed_on_error(sock):
            secure = SecureSocket(sock, self.context, host)
        with closed_on_error(secure), contextlib.ExitStack() as added:
            stop.add(secure)
            added.callback(stop.discard, secure)
            self.shake_hands(secure, host)
            added.pop_all()
        return secure

    def _unknown(self, peer: str, reason: str, key: bytes | None) -> str:
        is_other = reason.lower().endswith(_OTHER_NAME)
        remedy = (
            "It is for another name: the URL must have a name or an address that is in it"
            if is_other
            else f"{self.option} FILE trusts the authority that signed it"
        )
        pinned = f"; or, if the server's administrator tells the same pin, --pin {_pin(key)} trusts its key"
        by_pin = "" if self.option == SOURCE_OPTION else pinned
        return f"the certificate of {peer} can't be verified: {reason}. {remedy}{by_pin}"


def _keys(text: str) -> list[bytes]:
    found = [_PIN.fullmatch(pin) for pin in text.split(";")]
    if not all(found):
        raise Usage("a pin must look like sha256//BASE64, the SHA-256 of a public key; several are joined by ;")
    return [base64.b64decode(match[1]) for match in found if match]


def _pin(key: bytes | None) -> str:
    return f"sha256//{base64.b64encode(key or b'').decode()}"
