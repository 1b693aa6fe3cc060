# SPDX-License-Identifier: Apache-2.0
"""Transfers that were cancelled and have not ended yet: who waits for whom, until an image is left alone.

The one rule: an image is free when no cancelled transfer uses it any more, by whatever name. Opening it waits for that,
so that the last write of a ticket that was removed comes before the first one of the next ticket. The end of a transfer
waits for it, too: who has removed a ticket may do with its image what he likes.

Shared by the event loops; the rules stand in transfers.py.
"""

from collections.abc import Awaitable
from enum import Enum
from typing import Protocol

from .tickets import Ticket


class EndingTransfer(Protocol):
    """A cancelled transfer, as those see it that wait for it. It may be about to be cancelled."""

    @property
    def ticket(self) -> Ticket:
        """Return its ticket."""
        ...

    @property
    def identity(self) -> object:
        """Return which image it has open, or had; None: nobody knows, or it never had one."""
        ...

    @property
    def in_use(self) -> bool:
        """Tell whether something runs on its image."""
        ...

    @property
    def has_left(self) -> bool:
        """Tell whether nothing of it runs, and its image is closed."""
        ...

    def until_left(self) -> Awaitable[None]:
        """Return what is done when it has left."""
        ...

    def until_ended(self) -> Awaitable[None]:
        """Return what is done when besides its image is free."""
        ...


class _By(Enum):
    TICKET = "ticket id"
    URL = "url"
    IDENTITY = "identity"


#: What transfers are found by.
_Key = tuple[_By, object]


class EndingTransfers:
    """All that were cancelled, until they have ended. Its owner adds and removes them, one at a time."""

    def __init__(self) -> None:
        self._keys: dict[EndingTransfer, set[_Key]] = {}
        self._found: dict[_Key, set[EndingTransfer]] = {}
        self._identified = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, transfer: EndingTransfer) -> None:
        """Have others wait for this one. Again when it was cancelled: meanwhile its image may have become known."""
        keys = self._keys.setdefault(transfer, set())
        for key in _keys_of(transfer) - keys:
            keys.add(key)
            self._found.setdefault(key, set()).add(transfer)
            self._identified += key[0] is _By.IDENTITY

    def remove(self, transfer: EndingTransfer) -> None:
        """Forget one that has ended, if it was added."""
        for key in self._keys.pop(transfer, ()):
            found = self._found[key]
            found.remove(transfer)
            if not found:
                del self._found[key]
            self._identified -= key[0] is _By.IDENTITY

    def all(self) -> list[EndingTransfer]:
        """Return all of them."""
        return list(self._keys)

    def of_ticket(self, ticket_id: str) -> list[EndingTransfer]:
        """Return those of a ticket id: replaced ones, removed ones."""
        return self._find((_By.TICKET, ticket_id))

    @property
    def any_identified(self) -> bool:
        """Tell whether some may use an image that is known by its identity."""
        return self._identified > 0

    def users(self, url: str, identity: object, *, but: object) -> list[EndingTransfer]:
        """Return those that may still use an image of this url or identity; None: unknown. but: who asks."""
        found = self._find((_By.URL, url))
        if identity is not None:
            found += self._find((_By.IDENTITY, identity))
        return [other for other in found if other is not but and not other.has_left]

    async def until_free(self, url: str, identity: object, *, but: object) -> None:
        """Wait until nobody else uses an image."""
        while others := self.users(url, identity, but=but):
            await others[0].until_left()

    def _find(self, key: _Key) -> list[EndingTransfer]:
        return list(self._found.get(key, ()))


def _keys_of(transfer: EndingTransfer) -> set[_Key]:
    ticket, identity = transfer.ticket, transfer.identity
    keys: set[_Key] = {(_By.TICKET, ticket.ticket_id), (_By.URL, ticket.url)}
    return keys if identity is None else keys | {(_By.IDENTITY, identity)}
