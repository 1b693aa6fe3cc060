# SPDX-License-Identifier: Apache-2.0
"""`GET /images/{id}` with `Upgrade: nbd`: the connection becomes the ticket's NBD export (RFC 9110 7.8, ADR 59)."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from aiohttp import web
from aiohttp.http import HttpVersion11

from ....operations import operations
from ....transfers.store import TransferStore
from ....transfers.ticket import Access
from ....transfers.transfer import Transfer
from ..request import attach, connection_of
from ..routes import Resource

#: The name of the protocol. IANA has none for NBD; Incus and LXD use this one.
NBD = "nbd"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: nbd\r\nConnection: Upgrade\r\n\r\n"


class Prepared(Protocol):
    """An NBD service for one client, which has no connection yet."""

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serve the connection from now on. `received` has the client's bytes after its request."""

    def abandon(self) -> None:
        """Release the prepared service, if adopt() was not called."""


#: A function that prepares NBD for the ticket of a transfer and a client's address. It raises TooManyConnections,
#: Forbidden, Unavailable.
Prepare = Callable[[Transfer, str], Prepared]


class Upgrades:
    """Serve requests that ask for NBD. `services` prepares it, for each HTTP service."""

    def __init__(self, store: TransferStore, services: Mapping[str, Prepare]) -> None:
        self._store = store
        self._services = services

    def images(self, own: Resource) -> Resource:
        """Return the resource `/images/{}`, whose GET may ask for NBD."""
        get = own.methods["GET"]

        async def handler(request: web.Request) -> web.StreamResponse:
            return await (self._upgrade(request) if asks_for_nbd(request) else get(request))

        return Resource({**own.methods, "GET": handler}, own.allow, own.cors)

    async def _upgrade(self, request: web.Request) -> web.StreamResponse:
        """Answer 101 and give the connection to NBD, unless the request is refused as any GET.

        This ends when HTTP has lost the connection. Raises Forbidden, TooManyConnections, Unavailable, Canceled,
        StorageError.
        """
        transfer = attach(self._store, request, Access.READ)
        await operations.info(transfer)  # opens the image
        connection = connection_of(request)
        exchange = connection.exchange
        prepared = self._services[exchange.service](transfer, exchange.peer)
        try:
            connection.upgrade(SWITCHING, prepared.adopt)
            ended: asyncio.Future[web.StreamResponse] = asyncio.get_running_loop().create_future()
            return await ended  # until the connection is lost
        finally:
            prepared.abandon()


def asks_for_nbd(request: web.Request) -> bool:
    """Return whether a request asks for NBD and may. In HTTP/1.0, and with a body, it may not.

    HTTP/1.0 has no Upgrade, and a body would delay the change. A request that may not ask is served as if it had not
    asked (RFC 9110 7.8).
    """
    return (
        request.version >= HttpVersion11
        and NBD in _tokens(request, "upgrade")
        and "upgrade" in _tokens(request, "connection")
        and request.content.at_eof()
    )


def _tokens(request: web.Request, field: str) -> list[str]:
    """Return the members of a field that is a list, in lower case (RFC 9110 5.6.1)."""
    return [token.strip().lower() for value in request.headers.getall(field, []) for token in value.split(",")]
