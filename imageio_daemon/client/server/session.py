# SPDX-License-Identifier: Apache-2.0
"""The connections of one transfer to its server: by TCP or by the unix socket, how many, with which abilities."""

import contextlib
import logging
import queue
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from ..errors import ServerFailed, Temporary, Usage
from ..stopping import Stop
from .abilities import Abilities
from .address import Endpoint, ImageUrl, unix_address
from .client_connection import ClientConnection
from .local_socket import LocalSocket
from .pace import LEAST_RATE, Pace
from .remote_image import RemoteImage
from .restarts import Restarts
from .retries import Retries
from .trust import Trust

log = logging.getLogger(__name__)

#: Default number of connections, if the server allows it. On a busy machine with 2 cores, 1 GiB over TLS took 3.2 to 10
#: s on 1 connection and 2.4 to 9 s on 4, with the same processor time.
CONNECTIONS = 4


@dataclass(frozen=True)
class Settings:
    """How to connect to a server.

    `cert` is the PEM file of the client's certificate, for servers that ask for one, and `key` that of its key, by
    default the same file. `cafile` is a PEM file of CAs to trust, in place of those of the system. With `pins`, the
    server must have one of these public keys, written `sha256//BASE64` as for curl's --pinnedpubkey; without `cafile`,
    no authority is needed then. With `insecure`, trust any server, or any with one of the pins, also without TLS
    (http://). `unix_socket` is the path of the local service, or `@NAME` for an abstract socket. By default, and if
    `local` is true, the client uses the socket that the server tells, after a proof that it is the server's.
    `connections` is their number, by default CONNECTIONS. `retry_for` is the seconds for which a request is sent again
    after temporary failures, such as a lost connection or network or a restart of the server; by default RETRY_FOR, or
    UNREACHED_FOR if nothing has ever listened at the address. `rate` is the limit in bytes per second for all
    connections together, in both directions, at least LEAST_RATE. `source_cafile` is as `cafile`, for the web server of
    an image to upload.
    """

    cafile: str | None = None
    pins: Sequence[str] = ()
    insecure: bool = False
    unix_socket: str | None = None
    local: bool = True
    connections: int | None = None
    retry_for: float | None = None
    rate: int | None = None
    cert: str | None = None
    key: str | None = None
    source_cafile: str | None = None


DEFAULTS = Settings()


def trust_of(settings: Settings) -> Trust:
    """Return the rules of TLS. Raises Usage, LocalError."""
    own = {"cert": settings.cert, "key": settings.key}
    return Trust.of(settings.cafile, settings.pins, insecure=settings.insecure, **own)


def securing(settings: Settings) -> Callable[[socket.socket, str, Stop], socket.socket]:
    """Return a function that makes TLS on a connected socket, by the rules of the settings; see Trust.secured().

    It makes the rules when they are needed, because loading takes time.
    """
    return lambda sock, host, stop: trust_of(settings).secured(sock, host, stop)


def require_tls(settings: Settings) -> None:
    """Raise Usage for a URL with http, unless the settings are insecure: a ticket is not sent in the clear."""
    if not settings.insecure:
        raise Usage(
            "with http:// everybody on the way can read the ticket and the image: the URL must begin with https://. "
            "Nothing was sent; --insecure sends it all the same, for tests"
        )


class ClientSession:
    """The connections of one transfer to one image. Methods block, and raise ClientError."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = ImageUrl.parse(url)
        self.stop = Stop()
        self.restarts = Restarts()
        self.retries = Retries()
        self._settings = settings
        self._images: list[RemoteImage] = []
        self._idle: queue.LifoQueue[RemoteImage] = queue.LifoQueue()
        if settings.rate is not None and settings.rate < LEAST_RATE:
            raise Usage(f"the rate is at least {LEAST_RATE} bytes per second")
        self._pace = Pace(settings.rate)
        self._endpoint = self._first_endpoint()
        self.abilities = Abilities(frozenset())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Call this when no thread uses them any more."""
        for image in self._images:
            image.close()

    @property
    def peer(self) -> str:
        """Return the server's name for messages."""
        return self._endpoint.peer

    @property
    def is_local(self) -> bool:
        """Return whether the client reaches the server by its unix socket."""
        return self._endpoint.unix is not None or self._endpoint.local is not None

    def open(self) -> RemoteImage:
        """Connect, ask for the abilities of the server, and return the first connection."""
        image = self.connect()
        self.abilities = image.abilities()
        self.restarts.instance = self.abilities.instance
        if self._settings.local and self._is_on_this_host(self.abilities.local):
            image.close()
            return self.connect()
        return image

    def ask_again(self, image: RemoteImage) -> None:
        """Ask for the abilities again, because they have changed."""
        self.abilities = image.abilities()

    def connect(self) -> RemoteImage:
        """Return another connection, which its first request opens."""
        return self._image(self._endpoint, self.stop, self._settings.retry_for)

    def more(self, first: RemoteImage, count: int) -> list[RemoteImage]:
        """Return `first` and others, together `count` connections, which lent() may lend from now on."""
        images = [first, *(self.connect() for _ in range(count - 1))]
        for image in reversed(images):
            self._idle.put(image)
        return images

    @contextlib.contextmanager
    def lent(self) -> Iterator[RemoteImage]:
        """Take an idle connection of more() for the block, or wait for one. That which was used last is the next."""
        image = self._idle.get()
        try:
            yield image
        finally:
            self._idle.put(image)

    def release(self, image: RemoteImage) -> None:
        """Close a connection that is not needed any more."""
        image.close()
        self._images.remove(image)

    def reconnect(self, stop: Stop) -> RemoteImage:
        """Return a connection for use after all others were shut down. It checks whether the server was restarted."""
        return self._image(self._endpoint.url or self._endpoint, stop, 0, lost=True)

    def connections(self, limit: int) -> int:
        """Return the number of connections to use if the server allows `limit`."""
        return max(1, min(self._settings.connections or self._pace.connections(CONNECTIONS), limit))

    def _image(self, endpoint: Endpoint, stop: Stop, retry_for: float | None, *, lost: bool = False) -> RemoteImage:
        restarts, retries = self.restarts, self.retries
        image = RemoteImage(self.url, endpoint, stop, retry_for, restarts, retries, lost=lost, pace=self._pace)
        self._images.append(image)
        return image

    def _first_endpoint(self) -> Endpoint:
        url, settings = self.url, self._settings
        if settings.unix_socket:
            return Endpoint(settings.unix_socket, unix=unix_address(settings.unix_socket))
        if url.scheme != "https":
            if settings.pins:
                raise Usage("a pin needs a URL with https: without TLS nobody knows who the server is")
            require_tls(settings)
        return url.endpoint(trust_of(settings) if url.scheme == "https" else None)

    def _is_on_this_host(self, local: LocalSocket | None) -> bool:
        """Return whether the server's unix socket is on this host and has proven itself. Later connections then use it.

        This is not done with a proxy, because the user wants the proxy to be used.
        """
        if local is None or self._endpoint.proxy is not None:
            return False
        endpoint = Endpoint(f"{self.url.peer} (unix socket)", local=local, url=self._endpoint)
        candidate = ClientConnection(endpoint, self.stop)
        try:
            candidate.connect()
        except (ServerFailed, Temporary) as e:
            log.debug("%s is not used: %s", endpoint.peer, e)
            return False
        finally:
            candidate.close()
        self._endpoint = endpoint
        log.info("%s is this host: using its unix socket", self.url.peer)
        return True
