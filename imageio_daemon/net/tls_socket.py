# SPDX-License-Identifier: Apache-2.0
"""TLS on a non-blocking socket, by OpenSSL without a transport in between (docs/adr/0014)."""

import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from ioutil_ext import ffi, lib

from ..urls.hosts import certified

#: Results of TlsSocket in place of a count. The caller repeats the call when the socket is readable, or writable.
WANTS_INPUT: int = lib.IOU_TLS_WANTS_INPUT
WANTS_ROOM: int = lib.IOU_TLS_WANTS_ROOM

#: The version of OpenSSL for connections. Python's ssl may use another one, because wheels bring their own.
OPENSSL_VERSION: str = ffi.string(lib.iou_tls_library()).decode()

#: Where distributions (Debian, Fedora, Alpine) keep the authorities that they trust.
_SYSTEM_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)

_view: Callable[[bytes | memoryview], Any] = ffi.from_buffer


class TlsContext:
    """An OpenSSL context with a certificate and key, and the rules of an SSLContext. Raises OSError.

    The rules give ciphers, options, minimum version and verification. The files are PEM, and the key has no passphrase.
    `ca_file` has the CA certificates that verify peers. A client without it uses those of the system.
    """

    def __init__(self, rules: ssl.SSLContext, *, cert_file: str = "", key_file: str = "", ca_file: str = "") -> None:
        self.rules = rules
        policy, _owned = _policy(rules, cert_file, key_file, ca_file)
        result = ffi.new("iou_tls_context **")
        reason = ffi.new("char[]", lib.IOU_TLS_REASON)
        code = lib.iou_tls_context_new(policy, result, reason)
        if code:
            raise OSError(-code, ffi.string(reason).decode(errors="replace"))
        self._context = ffi.gc(result[0], lib.iou_tls_context_free)

    @property
    def expires(self) -> int:
        """Return when the certificate expires, in seconds since 1970, or 0 if there is none."""
        return int(lib.iou_tls_context_expires(self._context))

    def wrap(self, sock: socket.socket, host: str | None = None) -> "TlsSocket":
        """Return TLS on a connected, non-blocking socket.

        `host` is the server's name or address, for SNI and verification; without it, this side is the server. Raises
        OSError.
        """
        result = ffi.new("iou_tls **")
        name = ffi.NULL if host is None else certified(host).encode("idna")
        code = lib.iou_tls_new(self._context, sock.fileno(), name, result)
        if code:
            raise OSError(-code, os.strerror(-code))
        return TlsSocket(result[0])


class TlsSocket:
    """TLS of one connection. No method blocks. Keep the socket open while you call methods."""

    def __init__(self, tls: Any) -> None:
        #: The connection in C. While a lane uses it, do not call methods.
        self.tls = ffi.gc(tls, lib.iou_tls_free)

    def handshake(self) -> int:
        """Continue the handshake. Return 0 if it is complete, else WANTS_INPUT or WANTS_ROOM.

        Raises OSError, with EKEYREJECTED if the peer's certificate cannot be verified.
        """
        return self._checked(lib.iou_tls_handshake(self.tls))

    @property
    def peer_key(self) -> bytes | None:
        """Return the SHA-256 of the public key in the server's certificate (RFC 7469 2.4), if it has sent one.

        This is so even if the certificate was not verified. Only a complete handshake proves that the server has the
        key.
        """
        digest = ffi.new("uint8_t[]", lib.IOU_TLS_KEY_HASH)
        return None if lib.iou_tls_peer_key(self.tls, digest) else bytes(ffi.buffer(digest))

    def readinto(self, view: memoryview) -> int:
        """Receive as many bytes as are there and fit into the view.

        Returns the number of bytes, or 0 after the peer's close_notify, or WANTS_INPUT or WANTS_ROOM. Raises OSError.
        """
        return self._checked(lib.iou_tls_read(self.tls, _view(view), len(view)))

    @property
    def pending(self) -> bool:
        """Return whether OpenSSL holds data, the end or an error for readinto(), which epoll does not report."""
        return bool(lib.iou_tls_pending(self.tls))

    def write(self, data: bytes | memoryview) -> int:
        """Send bytes. Return the number of sent ones, at least one, or WANTS_INPUT or WANTS_ROOM. Raises OSError.

        After WANTS_INPUT or WANTS_ROOM, the next call must have the same data (SSL_write(3)).
        """
        return self._checked(lib.iou_tls_write(self.tls, _view(data), len(data), False))

    def end(self) -> None:
        """Send close_notify (RFC 8446 6.1) if the socket has room for it."""
        lib.iou_tls_end(self.tls)

    def _checked(self, result: int) -> int:
        if result < 0 and result not in (WANTS_INPUT, WANTS_ROOM):
            raise OSError(-result, ffi.string(lib.iou_tls_reason(self.tls)).decode(errors="replace"))
        return result


def _system_authorities() -> tuple[str, str]:
    """Return the file and the directory of the authorities that this host trusts, with "" for a missing one.

    These are the paths of Python's ssl, which follows SSL_CERT_FILE and SSL_CERT_DIR. A Python that was built elsewhere
    may have the paths of that host, which do not exist here: then try those of distributions.
    """
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        return paths.cafile or "", paths.capath or ""
    return next(filter(os.path.exists, _SYSTEM_CA_FILES), ""), ""


def _policy(rules: ssl.SSLContext, cert_file: str, key_file: str, ca_file: str) -> tuple[Any, list[Any]]:
    """Return the rules as C takes them, and the memory that they point to."""
    owned = []

    def text(value: str) -> Any:
        if not value:
            return ffi.NULL
        owned.append(ffi.new("char[]", os.fsencode(value)))
        return owned[-1]

    # This list is for TLS 1.2; the suites of TLS 1.3 are always enabled (SSL_CTX_set_cipher_list(3)).
    ciphers = ":".join(c["name"] for c in rules.get_ciphers() if c["protocol"] != "TLSv1.3")
    policy = ffi.new("iou_tls_policy *")
    ca_dir = ""
    if not ca_file and rules.protocol is ssl.PROTOCOL_TLS_CLIENT and rules.verify_mode is not ssl.CERT_NONE:
        ca_file, ca_dir = _system_authorities()
    policy.chain_file, policy.key_file = text(cert_file), text(key_file)
    policy.ca_file, policy.ca_dir = text(ca_file), text(ca_dir)
    policy.ciphers = text(ciphers)
    policy.options = int(rules.options) % 2**64
    policy.verify_flags = int(rules.verify_flags)
    policy.minimum_version = max(0, rules.minimum_version)  # the lowest that is supported is negative
    policy.security_level = rules.security_level
    policy.server = rules.protocol is ssl.PROTOCOL_TLS_SERVER
    policy.asks_peer = rules.verify_mode is not ssl.CERT_NONE
    policy.needs_peer = rules.verify_mode is ssl.CERT_REQUIRED
    return policy, owned
