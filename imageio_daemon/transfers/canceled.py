# SPDX-License-Identifier: Apache-2.0
"""The transfers that were cancelled and have not ended yet, by ticket and by image.

An image is free when no cancelled transfer uses it, under any url. Opening waits until the image is free, so the last
write of a removed ticket comes before the first write of the next ticket. The end of a transfer also waits until the
image is free, so that the image can be moved or deleted after the removal of its ticket.
"""

import asyncio
from collections.abc import Awaitable
from enum import Enum
from typing import Protocol

from ..errors import InUse, TooManyTickets
from .ticket import Ticket

#: The limit on tickets and cancelled transfers together is this factor times the limit on tickets. Otherwise tickets
#: that are replaced again and again while storage hangs would take all memory.
CANCELED_FACTOR = 2


class CanceledTransfer(Protocol):
    """What the registry needs of a transfer that is cancelled, or about to be: a TransferEnd has it."""

    @property
    def ticket(self) -> Ticket:
        """Return the ticket of the transfer."""
        ...

    @property
    def identity(self) -> object:
        """Return BackendInfo.identity of the image that is or was open, if it is known."""
        ...

    @property
    def in_use(self) -> bool:
        """Tell whether the image is used; see TransferEnd.in_use."""
        ...

    @property
    def has_left(self) -> bool:
        """Tell whether no operation or lane of the transfer runs, and its image is closed."""
        ...

    @property
    def has_ended(self) -> bool:
        """Tell whether the transfer has left its image, and the image is free."""
        ...

    def until_ended(self) -> Awaitable[None]:
        """Return an awaitable that is done when the transfer has left its image and the image is free."""
        ...


class _By(Enum):
    URL = "url"
    IDENTITY = "identity"


#: The key of an image: its url or its identity.
_Key = tuple[_By, object]


class _Users:
    """The cancelled transfers that have not left an image, and the event for which all wait who want the image."""

    def __init__(self) -> None:
        self.transfers: set[CanceledTransfer] = set()
        self.gone = asyncio.Event()


class CanceledTransfers:
    """Hold cancelled transfers until they have ended."""

    def __init__(self) -> None:
        self._tickets: dict[str, set[CanceledTransfer]] = {}
        self._keys: dict[CanceledTransfer, set[_Key]] = {}  # keys of the image; none after the transfer has left it
        self._users: dict[_Key, _Users] = {}
        self._identified = 0

    def __len__(self) -> int:
        return len(self._keys)

    def require_room(self, tickets: int, most_tickets: int) -> None:
        """Raise TooManyTickets if there are too many tickets and cancelled transfers for a limit of `most_tickets`."""
        most = CANCELED_FACTOR * most_tickets
        if tickets + len(self) >= most:
            raise TooManyTickets(f"The limit of {most} tickets is reached, with those that are gone and have not ended")

    def add(self, transfer: CanceledTransfer) -> None:
        """Add a transfer that has not ended.

        Call this before and after its cancellation, because the identity may become known in between.
        """
        if transfer.has_ended:
            return
        keys = self._keys.setdefault(transfer, set())
        self._tickets.setdefault(transfer.ticket.ticket_id, set()).add(transfer)
        if transfer.has_left:
            return
        for key in _keys_of(transfer) - keys:
            keys.add(key)
            self._users.setdefault(key, _Users()).transfers.add(transfer)
            self._identified += key[0] is _By.IDENTITY

    def leave(self, transfer: CanceledTransfer) -> None:
        """Note that a transfer has left its image. The last one wakes what waits. No effect if it was not added."""
        keys = self._keys.get(transfer, set())
        while keys:
            key = keys.pop()
            users = self._users[key]
            users.transfers.remove(transfer)
            self._identified -= key[0] is _By.IDENTITY
            if not users.transfers:
                del self._users[key]
                users.gone.set()

    def remove(self, transfer: CanceledTransfer) -> None:
        """Remove a transfer that has ended. No effect if it was not added."""
        if self._keys.pop(transfer, None) is None:
            return
        ticket_id = transfer.ticket.ticket_id
        self._tickets[ticket_id].remove(transfer)
        if not self._tickets[ticket_id]:
            del self._tickets[ticket_id]

    def all(self) -> list[CanceledTransfer]:
        """Return all transfers of the registry."""
        return list(self._keys)

    def of_ticket(self, ticket_id: str) -> list[CanceledTransfer]:
        """Return the cancelled transfers of a ticket id, whose tickets were replaced or removed."""
        return list(self._tickets.get(ticket_id, ()))

    @property
    def any_identified(self) -> bool:
        """Tell whether any transfer has not left an image whose identity is known."""
        return self._identified > 0

    def uses(self, url: str, identity: object, *, but: object) -> bool:
        """Tell whether a transfer other than `but` may use the image of this url or identity, which may be None."""
        return any(users.transfers - {but} for users in self._of_image(url, identity))

    async def until_ended(self, ticket_id: str, timeout: float) -> None:
        """Wait until all cancelled transfers of a ticket id have ended. Raises InUse after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while left := self.of_ticket(ticket_id):
                    await left[0].until_ended()
        except TimeoutError:
            raise InUse("The ticket is still used: what runs on its image has not ended") from None

    async def until_free(self, url: str, identity: object) -> None:
        """Wait until no transfer of the registry uses the image of this url or identity. May be cancelled."""
        while found := self._of_image(url, identity):
            await found[0].gone.wait()

    def _of_image(self, url: str, identity: object) -> list[_Users]:
        keys: list[_Key] = [(_By.URL, url), (_By.IDENTITY, identity)]
        return [users for key in keys if (users := self._users.get(key)) is not None]


def _keys_of(transfer: CanceledTransfer) -> set[_Key]:
    url: _Key = (_By.URL, transfer.ticket.url)
    return {url} if transfer.identity is None else {url, (_By.IDENTITY, transfer.identity)}
