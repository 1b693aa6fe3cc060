# SPDX-License-Identifier: Apache-2.0
"""The control service: add, show, extend and remove tickets."""

import json

from ...errors import InvalidRequest, NotFound
from ...tickets import Ticket, timeout_from_json
from ...transfers import Transfer
from ...transferstore import TransferStore
from .messages import JSON, Request, Response
from .routes import Resource


class Tickets:
    """Serve the tickets of a store.

    inactivity_timeout: of tickets that name none; remove_timeout: how long a removal waits for running requests. Both
    in seconds.
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

    async def get(self, request: Request) -> Response:
        """Show a ticket and its state."""
        return _json(self._find(request).status())

    async def put(self, request: Request) -> Response:
        """Add a ticket, or replace one."""
        ticket = Ticket.from_json(await request.read_json(), inactivity_timeout=self._inactivity_timeout)
        if ticket.ticket_id != request.name:
            raise InvalidRequest("Invalid ticket: 'uuid' is not the id in the path")
        self._store.add(ticket)
        return Response()

    async def patch(self, request: Request) -> Response:
        """Let a ticket live longer, or end sooner."""
        timeout = timeout_from_json(await request.read_json())
        self._find(request).extend(timeout)
        return Response()

    async def delete(self, request: Request) -> Response:
        """Cancel and remove a ticket."""
        await self._store.remove(request.name, self._remove_timeout)
        return Response(204)

    async def list_all(self, _: Request) -> Response:
        """Show all tickets."""
        return _json([transfer.status() for transfer in self._store.all()])

    async def clear(self, _: Request) -> Response:
        """Cancel and remove all tickets, without waiting."""
        self._store.clear()
        return Response(204)

    def _find(self, request: Request) -> Transfer:
        transfer = self._store.get(request.name)
        if transfer is None:
            raise NotFound("No such ticket")
        return transfer


async def _no_id(_: Request) -> Response:
    raise InvalidRequest("The ticket id in the path is empty")


def _json(data: object) -> Response:
    return Response(200, {"Content-Type": JSON}, json.dumps(data).encode())
