# SPDX-License-Identifier: Apache-2.0
"""The control service: add, show, extend and remove tickets."""

import asyncio
import json

from aiohttp import web

from ....errors import InvalidRequest, NotFound
from ....transfers.store import TransferStore
from ....transfers.ticket import Changes, Ticket
from ....transfers.transfer import Transfer
from ..headers import parse_choice
from ..request import exchange_of, name_of, query_of, read_json
from ..responses import JSON, json_response
from ..routes import Resource

#: States of tickets in a list before other tasks have their turn on the event loop. Each takes 0.1 ms.
BATCH = 50


class Tickets:
    """Serve the tickets of a store.

    `inactivity_timeout`, in seconds, is for tickets without one of their own. `remove_timeout` is how many seconds a
    removal waits for running requests. With 0 it does not wait.
    """

    def __init__(self, store: TransferStore, *, inactivity_timeout: int, remove_timeout: float) -> None:
        self._store = store
        self._inactivity_timeout = inactivity_timeout
        self._remove_timeout = remove_timeout

    def resource(self) -> Resource:
        """Return the resource `/tickets/{}`."""
        methods = {"GET": self.get, "PUT": self.put, "PATCH": self.patch, "DELETE": self.delete}
        return Resource(methods, tuple(methods))

    def collection(self) -> Resource:
        """Return the resource `/tickets/`."""
        methods = {"GET": self.list_all, "DELETE": self.clear}
        return Resource({**methods, "PUT": _no_id, "PATCH": _no_id}, tuple(methods))

    async def get(self, request: web.Request) -> web.Response:
        """Answer GET with a ticket and its state. Raises NotFound."""
        return json_response(self._find(request).status())

    async def put(self, request: web.Request) -> web.Response:
        """Add a ticket. If this replaces one, its requests are cancelled.

        Raises InvalidRequest, TooLarge, TooManyTickets, PeerGone.
        """
        ticket = Ticket.from_json(await read_json(request), inactivity_timeout=self._inactivity_timeout)
        if ticket.ticket_id != name_of(request):
            raise InvalidRequest("Invalid ticket: 'uuid' is not the id in the path")
        await self._store.install(ticket, exchange_of(request).caller)
        return web.Response()

    async def patch(self, request: web.Request) -> web.Response:
        """Let the ticket expire `timeout` seconds from now, or limit it to `rate`, as the body says. 0 s ends it now.

        Raises InvalidRequest, TooLarge, NotFound, PeerGone. Raises StorageError or Unavailable if a later process might
        load the ticket as it was.
        """
        changes = Changes.from_json(await read_json(request))
        transfer = self._find(request)
        await self._store.change(transfer, changes, exchange_of(request).caller)
        return web.Response()

    async def delete(self, request: web.Request) -> web.Response:
        """Cancel and remove a ticket. The answer is 204 also if there is no such ticket.

        Raises InUse if its operations have not ended after remove_timeout. Raises StorageError or Unavailable if a
        later process might load the ticket. In both cases the ticket stays, cancelled.
        """
        await self._store.remove(name_of(request), self._remove_timeout, exchange_of(request).caller)
        return web.Response(status=204)

    async def list_all(self, request: web.Request) -> web.Response:
        """Answer GET with all tickets and their state. Raises InvalidRequest.

        ?transfer= selects those with this name, ?in_use=y those in use.
        """
        query = query_of(request)
        found = self._store.all()
        if "transfer" in query:
            found = [transfer for transfer in found if transfer.ticket.log_name == query["transfer"]]
        if parse_choice(query, "in_use", ("n", "y")) == "y":
            found = [transfer for transfer in found if transfer.in_use]
        states = []
        for number, transfer in enumerate(found, 1):
            states.append(json.dumps(transfer.status()))
            if not number % BATCH:
                await asyncio.sleep(0)
        return web.Response(headers={"Content-Type": JSON}, body=f"[{', '.join(states)}]".encode())

    async def clear(self, request: web.Request) -> web.Response:
        """Cancel and remove all tickets, without waiting for requests. Raises StorageError, Unavailable."""
        await self._store.clear(exchange_of(request).caller)
        return web.Response(status=204)

    def _find(self, request: web.Request) -> Transfer:
        transfer = self._store.get(name_of(request))
        if transfer is None:
            raise NotFound("No such ticket")
        return transfer


async def _no_id(_: web.Request) -> web.Response:
    raise InvalidRequest("The ticket id in the path is empty")
