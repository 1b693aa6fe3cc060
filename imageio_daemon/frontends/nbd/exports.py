# SPDX-License-Identifier: Apache-2.0
"""Exports: the tickets as NBD clients see them, and the options of the sockets that serve them."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import BitmapInUse, Forbidden, NotFound
from ...lanes.shared import Lanes
from ...nbdproto.agreement import Export
from ...nbdproto.constants import BASE_ALLOCATION
from ...nbdproto.server_negotiation import Tls
from ...net.tls_socket import TlsContext
from ...operations import operations
from ...runtime import logs
from ...runtime.request_activity import Doing, Worker
from ...transfers.store import TransferStore
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer
from ...units import KiB

#: The preferred block size, in bytes (proto.md, "Block size constraints"). nbdcopy also looks for zeros in pieces of
#: this size. Small pieces stay in the caches of the processor. Measured with nbdcopy and 512 MiB, in MiB/s, with 1 MiB
#: and 256 KiB. tmpfs, 7 rounds: 1 connection, downloads 1308 and 1289, uploads 803 and 881; 4 connections, downloads
#: 1642 and 1775, uploads 1152 and 1120. Disk, 21 rounds: 1 connection, downloads 560 and 608, uploads 754 and 754;
#: 4 connections, downloads 588 and 651, uploads 741 and 770.
PREFERRED_BLOCK = 256 * KiB
#: A function that returns the TLS context to use now.
MakeContext = Callable[[], TlsContext]


@dataclass(frozen=True)
class NbdOptions:
    """The options of one listening socket.

    `tls` tells whether clients must, may or cannot use TLS, and `context` returns its context, if there is TLS.
    `handshake_timeout` is the seconds for the negotiation. With `listed`, NBD_OPT_LIST is answered. `name` is the
    service's, for counts.
    """

    store: TransferStore
    lanes: Lanes
    handshake_timeout: float
    tls: Tls = Tls.OFF
    context: MakeContext | None = None
    listed: bool = False
    name: str = "nbd"


class Attachment:
    """Count a connection as one of its transfer's, and call it back when the transfer is cancelled.

    `service` and `client` are the connection's, for the status. Raises TooManyConnections, Forbidden.
    """

    def __init__(self, transfer: Transfer, service: str, client: str) -> None:
        self.transfer = transfer
        self._canceled = False
        self._callback: Callable[[], None] | None = None
        #: The lane of the connection, once it has one.
        self.worker: Worker | None = None
        soon = partial(asyncio.get_running_loop().call_soon, self._cancel)
        transfer.connections.add(self, soon, service=service, client=client, doing=self._doing)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Set a callback for when the transfer is cancelled. If it was cancelled before, call it now.

        It may be called more than once.
        """
        self._callback = callback
        if self._canceled:
            callback()

    def detach(self) -> None:
        """Remove the connection from the transfer, and drop the callback."""
        self._callback = None
        self.transfer.connections.remove(self)

    def fields(self, **more: object) -> dict[str, dict[str, object]]:
        """Return the fields for a log line of the connection, without those that are None."""
        more = {name: value for name, value in more.items() if value is not None}
        return logs.fields(transfer=self.transfer.ticket.log_name, **more)

    def _doing(self) -> Doing | None:
        worker = self.worker
        return None if worker is None else worker.doing()

    def _cancel(self) -> None:
        self._canceled = True
        if self._callback is not None:
            self._callback()


async def find(store: TransferStore, name: str, *, changes: bool = False) -> tuple[Transfer, Export]:
    """Return the transfer of a ticket and its export. Checks the ticket, then opens the image.

    `name` is the export's name, which is the ticket id. With `changes` the client asks for a dirty bitmap. Raises
    Forbidden, StorageError, Canceled. Raises NotFound or BitmapInUse if the ticket offers dirty bitmaps, but the image
    has none that can be used.
    """
    transfer = store.authorize(name, Access.READ)
    info = await operations.info(transfer)
    ticket = transfer.ticket
    read_only = not transfer.permission.writable
    # The export of a file that may grow has the ticket's size, and reads as zeros past the end of the file. A ticket
    # with a declared_size has no limit, so it has no size for this.
    grows = info.can_grow and not read_only and ticket.declared_size is None
    size = ticket.size if grows else min(ticket.size, info.size)
    return transfer, Export(
        name,
        size,
        read_only=read_only,
        can_flush=info.can_flush,
        description=ticket.filename or "",
        contexts=(BASE_ALLOCATION, *(await _bitmaps(transfer, required=changes) if ticket.dirty else ())),
    )


async def _bitmaps(transfer: Transfer, *, required: bool) -> Sequence[str]:
    """Return the names of an image's bitmaps. If it has none that can be used and they are `required`, raise why."""
    backend = await transfer.backend()
    try:
        return backend.bitmaps()
    except (NotFound, BitmapInUse):
        if required:
            raise
        return ()


def names(store: TransferStore) -> list[str]:
    """Return the names of all exports that a client could enter now."""
    found = []
    for transfer in store.all():
        with contextlib.suppress(Forbidden):
            transfer.permission.require(Access.READ)
            found.append(transfer.ticket.ticket_id)
    return found
