# SPDX-License-Identifier: Apache-2.0
"""The negotiation on a connection that has changed from HTTP to NBD, for one ticket (ADR 59)."""

import asyncio
import dataclasses

from ...errors import DENIED, Forbidden
from ...lanes.nbd import NbdLane
from ...nbdproto.agreement import Export, FindExport
from ...net.admission import Admission
from ...net.tls_handshake import Handshakes
from ...transfers.transfer import Transfer
from . import exports
from .exports import Attachment, NbdOptions
from .handshake import ServerHandshake


class AdoptedHandshake(ServerHandshake):
    """Negotiate about one transfer, the only export. Its name is the ticket's id, or "", the default export.

    The connection counts as one of the transfer's from the beginning, so its image stays open. Raises
    TooManyConnections, Forbidden.
    """

    def __init__(
        self, options: NbdOptions, admission: Admission, handshakes: Handshakes, transfer: Transfer, client: str
    ) -> None:
        super().__init__(options, admission, handshakes)
        options.lanes.require_room(NbdLane)
        self._transfer = transfer
        self._attachment = Attachment(transfer, options.name, client)

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Begin on a connection whose reading is paused. `received` has the client's first bytes of this protocol."""
        self._transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        if transport.get_write_buffer_size():
            self._sent.clear()
        transport.set_protocol(self)
        self._begin()
        if self._place is None or self._attachment is None:
            return  # the server stops
        self._attachment.on_cancel(lambda: self.abort("the ticket has ended"))
        self._place.know(lambda: self._transfer.in_force)
        if received:
            self._take(received)
        else:
            transport.resume_reading()

    def abandon(self) -> None:
        """Release everything, if adopt() was not called."""
        if self._task is None:
            self._detach()

    async def _look_up(self, event: FindExport) -> tuple[Transfer, Export]:
        name = self._transfer.ticket.ticket_id
        if event.name not in ("", name):
            raise Forbidden(DENIED)
        transfer, export = await exports.find(self._options.store, name, changes=event.changes)
        if transfer is not self._transfer:  # the ticket was removed, and another one has its id
            raise Forbidden(DENIED)
        return transfer, dataclasses.replace(export, name=event.name)

    def _enter(self, transfer: Transfer) -> None:
        """Do nothing: the connection is attached already."""
