# SPDX-License-Identifier: Apache-2.0
"""The end of transfers, each from its cancellation until its image is free, and all that have not ended yet.

An image is free when no cancelled transfer uses it, under any url. Opening waits until the image is free, so the last
write of a removed ticket comes before the first write of the next ticket. The end of a transfer also waits until the
image is free, so that the image can be moved or deleted after the removal of its ticket.
"""

import asyncio
import logging
from collections.abc import Callable

from ..errors import InUse, TooManyTickets
from ..runtime import logs
from ..runtime.background import tell_failure
from .permission import Permission
from .ticket import Ticket
from .traffic import Traffic
from .transfer_image import Identify, TransferImage

log = logging.getLogger(__name__)

#: The limit on tickets and cancelled transfers together is this factor times the limit on tickets. Otherwise tickets
#: that are replaced again and again while storage hangs would take all memory.
CANCELED_FACTOR = 2


class TransferEnd:
    """Follow the end of a cancelled transfer in three steps.

    The transfer is quiet when no operation or lane runs. It has left when its image is closed. It has ended when its
    image is free: when no other of the `canceled` transfers uses it.
    """

    def __init__(
        self,
        ticket: Ticket,
        permission: Permission,
        traffic: Traffic,
        image: TransferImage,
        canceled: "CanceledTransfers",
        identify: Identify,
    ) -> None:
        self.ticket = ticket
        self._permission = permission
        self._traffic = traffic
        self._image = image
        self._canceled = canceled
        self._identify = identify
        self._quiet, self._ended = asyncio.Event(), asyncio.Event()
        #: Whether the transfer was cancelled, none of its operations or lanes runs, and its image is closed.
        self.has_left = False
        #: Functions that are called when the transfer has left its image, and when it has ended. Add to them before its
        #: cancellation.
        self.on_left: list[Callable[[], object]] = []
        self.on_ended: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to wait for the end. The cancel calls this once."""
        self.settle()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(tell_failure)

    def settle(self) -> None:
        """Complete the first step if nothing runs and the image is not being opened."""
        busy = self._traffic.any or self._image.on_its_way
        if self._permission.canceled and not busy:
            self._quiet.set()

    async def until_ended(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    @property
    def has_ended(self) -> bool:
        """Return whether the transfer has left its image, and no other cancelled transfer uses it, under any url."""
        return self._ended.is_set()

    @property
    def identity(self) -> object:
        """Return the identity of the image that is or was open, if it is known."""
        return self._image.identity

    @property
    def in_use(self) -> bool:
        """Return whether this transfer uses the image, also to open or close it, or a cancelled transfer does."""
        others = self._canceled.uses(self.ticket.url, self.identity, but=self)
        return bool(self._traffic.running or self._image.on_its_way or others)

    async def _run(self) -> None:
        await self._quiet.wait()
        await self._image.close()
        fields = self._traffic.fields(self._permission.used, self._permission.lease.active)
        log.info("transfer ended", extra=logs.fields(transfer=self.ticket.log_name, **fields))
        self.has_left = True
        _call(self.on_left)
        identity = self.identity
        if identity is None and self._canceled.any_identified:
            identity = await self._identify(self.ticket)
        await self._canceled.until_free(self.ticket.url, identity)
        self._ended.set()
        _call(self.on_ended)


def _call(functions: list[Callable[[], object]]) -> None:
    while functions:  # and drop them, because they refer to the transfer
        functions.pop(0)()


#: The key of an image: its url or its identity, after the word that says which.
_Key = tuple[str, object]


class _Users:
    """The cancelled transfers that have not left an image, and an event that is set when they have."""

    def __init__(self) -> None:
        self.transfers: set[TransferEnd] = set()
        self.gone = asyncio.Event()


class CanceledTransfers:
    """Hold cancelled transfers until they have ended."""

    def __init__(self) -> None:
        self._tickets: dict[str, set[TransferEnd]] = {}
        self._keys: dict[TransferEnd, set[_Key]] = {}  # keys of the image; none after the transfer has left it
        self._users: dict[_Key, _Users] = {}
        self._identified = 0

    def __len__(self) -> int:
        return len(self._keys)

    def require_room(self, tickets: int, most_tickets: int) -> None:
        """Raise TooManyTickets if there are too many tickets and cancelled transfers for a limit of `most_tickets`."""
        most = CANCELED_FACTOR * most_tickets
        if tickets + len(self) >= most:
            raise TooManyTickets(f"The limit of {most} tickets is reached, with cancelled ones that have not ended")

    def add(self, transfer: TransferEnd) -> None:
        """Add a transfer that has not ended.

        Call this before and after its cancellation, because the identity may become known in between.
        """
        if transfer.has_ended:
            return
        keys = self._keys.setdefault(transfer, set())
        self._tickets.setdefault(transfer.ticket.ticket_id, set()).add(transfer)
        if transfer.has_left:
            return
        for key in _keys(transfer.ticket.url, transfer.identity) - keys:
            keys.add(key)
            self._users.setdefault(key, _Users()).transfers.add(transfer)
            self._identified += key[0] == "identity"

    def leave(self, transfer: TransferEnd) -> None:
        """Note that a transfer has left its image. The last one wakes waiting tasks. No effect if it was not added."""
        keys = self._keys.get(transfer, set())
        while keys:
            key = keys.pop()
            users = self._users[key]
            users.transfers.remove(transfer)
            self._identified -= key[0] == "identity"
            if not users.transfers:
                del self._users[key]
                users.gone.set()

    def remove(self, transfer: TransferEnd) -> None:
        """Remove a transfer that has ended. No effect if it was not added."""
        if self._keys.pop(transfer, None) is None:
            return
        ticket_id = transfer.ticket.ticket_id
        self._tickets[ticket_id].remove(transfer)
        if not self._tickets[ticket_id]:
            del self._tickets[ticket_id]

    def all(self) -> list[TransferEnd]:
        """Return all transfers of the registry."""
        return list(self._keys)

    def of_ticket(self, ticket_id: str) -> list[TransferEnd]:
        """Return the cancelled transfers of a ticket id, whose tickets were replaced or removed."""
        return list(self._tickets.get(ticket_id, ()))

    @property
    def any_identified(self) -> bool:
        """Return whether any transfer has not left an image whose identity is known."""
        return self._identified > 0

    def uses(self, url: str, identity: object, *, but: object) -> bool:
        """Return whether a transfer other than `but` may use the image of this url or identity, which may be None."""
        return any(users.transfers - {but} for users in self._of_image(url, identity))

    async def until_ended(self, ticket_id: str, timeout: float) -> None:
        """Wait until all cancelled transfers of a ticket id have ended. Raises InUse after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while left := self.of_ticket(ticket_id):
                    await left[0].until_ended()
        except TimeoutError:
            raise InUse("The ticket is still used: operations on its image have not ended") from None

    async def until_free(self, url: str, identity: object) -> None:
        """Wait until no transfer of the registry uses the image of this url or identity. May be cancelled."""
        while found := self._of_image(url, identity):
            await found[0].gone.wait()

    def _of_image(self, url: str, identity: object) -> list[_Users]:
        return [users for key in _keys(url, identity) if (users := self._users.get(key)) is not None]


def _keys(url: str, identity: object) -> set[_Key]:
    """Return the keys of an image. Its identity is None if it is unknown."""
    return {("url", url)} if identity is None else {("url", url), ("identity", identity)}
