# SPDX-License-Identifier: Apache-2.0
"""Where a server is and how it is trusted."""

import contextlib
import re
import socket
import ssl
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from ..hostnames import is_host
from ..tlssocket import TlsContext
from ..transports import keep_alive
from .errors import LocalError, Usage
from .securesocket import SecureSocket

#: Longest time to wait for a connection, seconds.
CONNECT_TIMEOUT = 15.0


@dataclass(frozen=True)
class ImageUrl:
    """The URL of an image. `path` holds the ticket's id, a secret: never shown."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `https://HOST:PORT/images/TICKET`, also with http. Raises Usage."""
        with contextlib.suppress(ValueError):  # an impossible port or address
            parts = urllib.parse.urlsplit(text)
            port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
            image = parts.hostname and port and re.fullmatch("/images/[!-~]+", parts.path)
            plain = not parts.query and not parts.fragment and parts.username is None
            if parts.scheme in ("http", "https") and image and plain and parts.hostname and is_host(parts.hostname):
                return cls(parts.scheme, parts.hostname, port, parts.path)
        raise Usage("the URL must look like https://HOST:PORT/images/TICKET")

    @property
    def peer(self) -> str:
        """Name the server in messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_url(text: str) -> bool:
    """Tell whether an argument is meant as a URL, not as the name of a file."""
    return text.startswith(("https://", "http://"))


@dataclass(frozen=True)
class Endpoint:
    """A way to a server: a unix socket (`unix`, with its NUL if abstract), or host and port, by TLS with `tls`."""

    peer: str
    host: str = "localhost"
    port: int = 0
    unix: str | None = None
    tls: TlsContext | None = None

    def connect(self) -> socket.socket:
        """Return a connected socket, for shake_hands(). Raises OSError."""
        if self.unix is not None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with _closing_on_error(sock):
                sock.settimeout(CONNECT_TIMEOUT)
                sock.connect(self.unix)
            return sock
        sock = socket.create_connection((self.host, self.port), timeout=CONNECT_TIMEOUT)
        with _closing_on_error(sock):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)  # it may owe a long answer
            if self.tls:
                return SecureSocket(sock, self.tls, self.host)
            return sock


def shake_hands(sock: socket.socket) -> None:
    """Agree on keys, if this is TLS, and verify the server. Raises OSError."""
    if isinstance(sock, SecureSocket):
        sock.shake_hands()


@contextlib.contextmanager
def _closing_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def is_same_host(sock: socket.socket) -> bool:
    """Tell whether the peer of a TCP connection has our own address: nothing else speaks from it."""
    return bool(sock.getpeername()[0] == sock.getsockname()[0])


def unix_address(text: str) -> str:
    """Return the kernel's form of a socket's name: a leading "@" means an abstract name."""
    return "\0" + text[1:] if text.startswith("@") else text


def tls_context(cafile: str | None, *, insecure: bool) -> TlsContext:
    """Trust the system's authorities, or those in cafile instead, or with insecure anyone. Raises LocalError."""
    # Not create_default_context(): it loads the system's authorities, which takes 0.1 s, and C loads them, too.
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if insecure:
        rules.check_hostname = False
        rules.verify_mode = ssl.CERT_NONE
    try:
        return TlsContext(rules, ca_file=cafile or "")
    except OSError as e:
        raise LocalError(f"can't load the certificates in {cafile}: {e.strerror or e}") from e
