# SPDX-License-Identifier: Apache-2.0
"""Tickets as exports."""

import asyncio
import contextlib
from collections.abc import Callable

from ... import logs, operations
from ...errors import Forbidden
from ...nbdproto.transmission import Export
from ...tickets import Access
from ...transfers import Transfer
from ...transferstore import TransferStore


class Attachment:
    """A connection's hold on a transfer: it counts, and is told when the transfer is cancelled.

    Raises TooManyConnections, Forbidden.
    """

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self._loop = asyncio.get_running_loop()
        self._canceled = False
        self._callback: Callable[[], None] | None = None
        transfer.connect(self, lambda: _call(self._loop, self._cancel))

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call back, once, on this loop, when the transfer is cancelled, or has been."""
        self._callback = callback
        if self._canceled:
            callback()

    def detach(self) -> None:
        """Let go."""
        self._callback = None
        self.transfer.disconnect(self)

    def fields(self, **more: object) -> dict[str, dict[str, object]]:
        """Return what to log with a line of the connection, without what is None."""
        more = {name: value for name, value in more.items() if value is not None}
        return logs.fields(transfer=self.transfer.ticket.log_name, **more)

    def _cancel(self) -> None:
        self._canceled = True
        if self._callback is not None:
            self._callback()


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)


async def find(store: TransferStore, name: str) -> tuple[Transfer, Export]:
    """Return the transfer of a ticket and what is exported of it; opens the image, once that is allowed.

    Raises Forbidden, StorageError.
    """
    transfer = store.authorize(name, Access.READ)
    info = await operations.info(transfer)
    ticket = transfer.ticket
    read_only = not ticket.may(Access.WRITE)
    # A file that may grow is as large as the ticket allows: what it has not got yet reads as zeros. A ticket without a
    # limit does not tell how large that is.
    grows = info.can_grow and not read_only and ticket.declared_size is None
    size = ticket.size if grows else min(ticket.size, info.size)
    description = ticket.filename or ""
    return transfer, Export(name, size, read_only=read_only, can_flush=info.can_flush, description=description)


def names(store: TransferStore) -> list[str]:
    """Return the names of all exports that can be used now."""
    found = []
    for transfer in store.all():
        with contextlib.suppress(Forbidden):
            transfer.require(Access.READ)
            found.append(transfer.ticket.ticket_id)
    return found
