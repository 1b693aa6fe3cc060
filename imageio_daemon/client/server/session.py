# SPDX-License-Identifier: Apache-2.0
"""The connections of one transfer to its server: by TCP or the unix socket, how many, with which abilities."""

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..errors import ClientError, Usage
from ..stopping import Stop
from .abilities import Abilities
from .address import Endpoint, ImageUrl, unix_address
from .image import RemoteImage
from .proxy import HttpProxy
from .restarts import Restarts
from .retries import Retries
from .trust import Trust

log = logging.getLogger(__name__)

#: Default number of connections, if the server allows as many. On a busy machine with 2 cores 1 GiB over TLS took 3.2
#: to 10 s on 1 connection and 2.4 to 9 s on 4, with the same processor time.
CONNECTIONS = 4
#: Seconds for which failed requests are sent again: a daemon restarts in some, a host in one or two minutes.
RETRY_FOR = 120.0


@dataclass(frozen=True)
class Settings:
    """How to connect to a server.

    cafile: trust the CAs in this PEM file, not those of the system. pins: the server must have one of these public
    keys, `sha256//BASE64` as curl's --pinnedpubkey; without cafile no authority is asked for then. insecure: trust any
    server, or any with one of the pins. unix_socket: path of the local service, `@NAME` for an abstract socket; None:
    use the one that the server tells, if local is true and it is on this host. connections: their number; None:
    CONNECTIONS. retry_for: seconds for which a request is sent again after failures that may pass: a lost connection or
    network, a server that restarts.
    """

    cafile: str | None = None
    pins: Sequence[str] = ()
    insecure: bool = False
    unix_socket: str | None = None
    local: bool = True
    connections: int | None = None
    retry_for: float = RETRY_FOR


DEFAULTS = Settings()


class ClientSession:
    """The connections of one transfer to one image. Methods block; they raise ClientError."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = ImageUrl.parse(url)
        self.stop = Stop()
        self.restarts = Restarts()
        self.retries = Retries()
        self._settings = settings
        self._images: list[RemoteImage] = []
        self._endpoint = self._first_endpoint()
        self.abilities = Abilities(frozenset())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, which no thread uses any more."""
        for image in self._images:
            image.close()

    @property
    def peer(self) -> str:
        """Name the server in messages."""
        return self._endpoint.peer

    @property
    def is_local(self) -> bool:
        """Tell whether the server is reached by its unix socket."""
        return self._endpoint.unix is not None

    def open(self) -> RemoteImage:
        """Connect, ask for the abilities of the server, and return the first connection."""
        image = self.connect()
        self.abilities = image.abilities()
        self.restarts.instance = self.abilities.instance
        if self._settings.local and not self.is_local and self.abilities.unix_socket:
            return self._local(image, self.abilities.unix_socket) or image
        return image

    def ask_again(self, image: RemoteImage) -> None:
        """Ask for the abilities again, because they have changed."""
        self.abilities = image.abilities()

    def connect(self) -> RemoteImage:
        """Return another connection; its first request opens it."""
        image = RemoteImage(self.url, self._endpoint, self.stop, self._settings.retry_for, self.restarts, self.retries)
        self._images.append(image)
        return image

    def reconnect(self, stop: Stop) -> RemoteImage:
        """Return a connection to use after all others were shut down; it checks whether the server was restarted."""
        endpoint = self._endpoint.url or self._endpoint
        image = RemoteImage(self.url, endpoint, stop, 0, self.restarts, self.retries, lost=True)
        self._images.append(image)
        return image

    def connections(self, limit: int) -> int:
        """Return the number of connections to use if the server allows `limit`."""
        return max(1, min(self.most_connections, limit))

    @property
    def most_connections(self) -> int:
        """Return the number of connections to use if the server allows them."""
        return self._settings.connections or CONNECTIONS

    def _first_endpoint(self) -> Endpoint:
        url, settings = self.url, self._settings
        if settings.unix_socket:
            return Endpoint(settings.unix_socket, unix=unix_address(settings.unix_socket))
        if url.scheme != "https":
            if settings.pins:
                raise Usage("a pin needs a URL with https: without TLS nobody knows who the server is")
            return Endpoint(url.peer, url.host, url.port)
        tls = Trust.of(settings.cafile, settings.pins, insecure=settings.insecure)
        return Endpoint(url.peer, url.host, url.port, tls=tls, proxy=HttpProxy.of(url.host, os.environ))

    def _local(self, image: RemoteImage, address: str) -> RemoteImage | None:
        """Return a connection to the server's unix socket, None if the server is on another host.

        Behind a forwarded port a server seems to be on this host. So the service on the socket must give the same
        answers for the ticket.
        """
        if not image.connection.is_same_host():
            return None
        size = image.size()
        endpoint = Endpoint(f"{self.url.peer} (unix socket)", unix=address, url=self._endpoint)
        candidate = RemoteImage(self.url, endpoint, self.stop, 0, self.restarts, self.retries)
        with contextlib.suppress(ClientError):
            if candidate.abilities() == self.abilities and candidate.size() == size:
                image.close()
                self._endpoint = endpoint
                log.info("%s is this host: using its unix socket", self.url.peer)
                candidate.close()
                return self.connect()
        candidate.close()
        self.stop.check()
        return None
