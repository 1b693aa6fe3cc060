# SPDX-License-Identifier: Apache-2.0
"""A transfer's way to its server: which socket, how many connections, what the server can do."""

import contextlib
import logging
from dataclasses import dataclass
from typing import Self

from .address import Endpoint, ImageUrl, tls_context, unix_address
from .errors import ClientError
from .image import Abilities, Image
from .lives import Lives
from .stopping import Stop

log = logging.getLogger(__name__)

#: Connections by default, if the server allows as many. On 2 cores a GiB over TLS took 3.2 to 10 s on 1 connection,
#: 2.4 to 9 s on 4, on a machine busy with other work; the processor seconds of both sides were the same.
CONNECTIONS = 4
RETRIES = 8


@dataclass(frozen=True)
class Settings:
    """How to reach a server.

    cafile: trust these authorities, not those of the system. insecure: trust any server. unix_socket: where the local
    service is; None: find out, `@NAME` is an abstract socket. local: whether to look for one. connections: None for as
    many as seem useful. retries: how often a request that fails for a while is repeated; 8 take about half a minute.
    """

    cafile: str | None = None
    insecure: bool = False
    unix_socket: str | None = None
    local: bool = True
    connections: int | None = None
    retries: int = RETRIES


class Session:
    """Connections to one image. Blocks: for threads."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = ImageUrl.parse(url)
        self.stop = Stop()
        self.lives = Lives()
        self._settings = settings
        self._images: list[Image] = []
        self._endpoint = self._first_endpoint()
        self.abilities = Abilities(frozenset())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
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

    def open(self) -> Image:
        """Connect, learn what the server can do, and return the first connection."""
        image = self.connect()
        self.abilities = image.abilities()
        self.lives.instance = self.abilities.instance
        if self._settings.local and not self.is_local and self.abilities.unix_socket:
            return self._local(image, self.abilities.unix_socket) or image
        return image

    def connect(self) -> Image:
        """Return one more connection; it is opened by its first request."""
        image = Image(self.url, self._endpoint, self.stop, self._settings.retries, self.lives)
        self._images.append(image)
        return image

    def reconnect(self, stop: Stop) -> Image:
        """Return a connection to use when all others were cut; it looks whether the server is still the same."""
        image = Image(self.url, self._endpoint, stop, retries=0, lives=self.lives, lost=True)
        self._images.append(image)
        return image

    def connections(self, limit: int) -> int:
        """Return how many connections to use where the server recommends `limit` at most."""
        return max(1, min(self._settings.connections or CONNECTIONS, limit))

    def _first_endpoint(self) -> Endpoint:
        url, settings = self.url, self._settings
        if settings.unix_socket:
            return Endpoint(settings.unix_socket, unix=unix_address(settings.unix_socket))
        tls = tls_context(settings.cafile, insecure=settings.insecure) if url.scheme == "https" else None
        return Endpoint(url.peer, url.host, url.port, tls=tls)

    def _local(self, image: Image, address: str) -> Image | None:
        """Return a connection to the local service if the server is on this host: the same ticket, the same answers.

        Behind a forwarded port a server looks local; then its socket is not here, or does not know the ticket.
        """
        if not image.connection.is_same_host():
            return None
        size = image.size()
        endpoint = Endpoint(f"{self.url.peer} (unix socket)", unix=address)
        candidate = Image(self.url, endpoint, self.stop, retries=0, lives=self.lives)
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
