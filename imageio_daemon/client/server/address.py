# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers, and connections to them."""

import contextlib
import os
import re
import socket
import urllib.parse
from dataclasses import dataclass, field
from typing import Self

from ...net.transports import keep_alive
from ...urls import hosts
from ..connecting import closed_on_error, unix_connected
from ..errors import Usage
from .local_socket import LocalSocket
from .proxy import HttpProxy
from .secure_socket import SecureSocket
from .trust import Trust

#: Seconds to wait for a connection.
CONNECT_TIMEOUT = 15.0
#: Milliseconds until a connection whose bytes are not acknowledged counts as lost (tcp(7)). Otherwise a request that
#: was sent while the network was down would wait 15 minutes.
LOST_TIMEOUT = 60_000
#: Paths of URLs without a ticket; and the path of the page in links, before the fragment.
_NO_TICKET = ("", "/", "/images", "/images/")
_PAGE = "/ui/"
_SCHEMES = ("https://", "http://")


@dataclass(frozen=True)
class HttpUrl:
    """The URL of something on a server. `path`, which includes a query, may have a secret that must not be shown."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)

    @property
    def peer(self) -> str:
        """Return the server's name for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def endpoint(self, tls: Trust | None) -> "Endpoint":
        """Return the address of the server, and with TLS the proxy that the environment names. Raises Usage."""
        proxy = HttpProxy.of(self.host, os.environ) if tls else None
        return Endpoint(self.peer, self.host, self.port, tls=tls, proxy=proxy)


class ImageUrl(HttpUrl):
    """The URL of an image. `path` contains the ticket's id."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `https://HOST:PORT/images/TICKET`, or the link to a page, `https://HOST:PORT/ui/#TICKET`.

        Also with http, which ClientSession takes only if the settings allow it. Raises Usage.
        """
        with contextlib.suppress(ValueError):  # an impossible port or address
            parts = urllib.parse.urlsplit(text)
            if parts.path == _PAGE and parts.fragment:
                parts = parts._replace(path=f"/images/{parts.fragment}", fragment="")
            server = server_of(parts)
            if server and re.fullmatch("/images/[!-~]+", parts.path) and not parts.query and not parts.fragment:
                return cls(parts.scheme, *server, parts.path)
        raise Usage("the URL must look like https://HOST:PORT/images/TICKET, or https://HOST:PORT/ui/#TICKET")

    @property
    def ticket(self) -> str:
        """Return the id of the ticket, as the path has it."""
        return self.path.split("/")[2]


def server_of(parts: urllib.parse.SplitResult) -> tuple[str, int] | None:
    """Return host and port of a URL with http or https, or None for any other one. Raises ValueError."""
    host = hosts.decoded(parts.hostname or "")
    port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
    is_http = parts.scheme in ("http", "https") and parts.username is None
    return (host, port) if is_http and port and hosts.is_host(host) else None


def is_url(text: str) -> bool:
    """Return whether an argument is a URL, not the name of a file. Case does not matter (RFC 3986 3.1)."""
    return text[:8].lower().startswith(_SCHEMES)


def has_ticket(url: str) -> bool:
    """Return whether a URL names an image, not only a server. True also for other texts, which other code refuses."""
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(url)
        return not (is_url(url) and parts.path in (*_NO_TICKET, _PAGE) and not parts.query and not parts.fragment)
    return True


def is_image(url: str) -> bool:
    """Return whether a URL is that of an image with a ticket, not that of a file: /images/NAME without a suffix."""
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(url)
        return bool(re.fullmatch("/images/[^/.]+", parts.path) or (parts.path == _PAGE and parts.fragment))
    return False


def with_ticket(url: str, ticket_id: str) -> str:
    """Return the URL of an image from the URL of its server."""
    origin = urllib.parse.urlsplit(url)._replace(path="/images/", fragment="").geturl()
    return origin + urllib.parse.quote(ticket_id, safe="")


@dataclass(frozen=True)
class Endpoint:
    """The address of a server: `unix`, an abstract name with its leading NUL, or host and port.

    `peer` is the name in messages. `tls` is None for a connection without TLS. `proxy` connects to the host, if it is
    set. `local` is the unix socket that the server has told, with its proof. `url` is the server that told it. After a
    lost connection the client connects there, because a restarted server may have another unix socket.
    """

    peer: str
    host: str = "localhost"
    port: int = 0
    unix: str | None = None
    tls: Trust | None = None
    proxy: HttpProxy | None = None
    local: LocalSocket | None = None
    url: "Endpoint | None" = None

    def connect(self) -> socket.socket:
        """Return a connected socket, for shake_hands(). Raises OSError, and the errors of HttpProxy.tunnel()."""
        if self.local is not None:
            return self.local.connect(CONNECT_TIMEOUT)
        if self.unix is not None:
            return unix_connected(self.unix, CONNECT_TIMEOUT)
        hop = self.proxy or self
        sock = socket.create_connection((hop.host, hop.port), timeout=CONNECT_TIMEOUT)
        with closed_on_error(sock):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)  # answers may take long, and the server may vanish in this time
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_TIMEOUT)
            if self.proxy:
                self.proxy.tunnel(sock, self.host, self.port, CONNECT_TIMEOUT)
                sock.settimeout(CONNECT_TIMEOUT)
            if self.tls:
                return SecureSocket(sock, self.tls.context, self.host)
            return sock

    @property
    def authority(self) -> str:
        """Return host and port for the field Host (RFC 9110 7.2)."""
        return hosts.told(self.host, self.port) if self.port else self.host

    @property
    def way(self) -> str:
        """Return the name of the server, and of the proxy before it, for messages."""
        return f"{self.peer} by the proxy {self.proxy.peer}" if self.proxy else self.peer

    def shake_hands(self, sock: socket.socket) -> None:
        """Have the peer prove who it is, by TLS or as a local socket does. Send nothing before.

        Raises OSError, or ServerFailed if the proof fails.
        """
        if self.local is not None:
            self.local.prove(sock)
        if self.tls and isinstance(sock, SecureSocket):
            self.tls.shake_hands(sock, self.peer)


def unix_address(text: str) -> str:
    """Return the address for connect(2): a leading "@", for an abstract name, becomes a NUL."""
    return "\0" + text[1:] if text.startswith("@") else text
