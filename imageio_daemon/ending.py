# SPDX-License-Identifier: Apache-2.0
"""Transfers that were cancelled and have not ended yet: who waits for whom, until an image is left alone.

The one rule: an image is free when no cancelled transfer uses it any more, by whatever name. Opening it waits for that,
so that the last write of a ticket that was removed comes before the first one of the next ticket. The end of a transfer
waits for it, too: who has removed a ticket may do with its image what he likes.

Shared by the event loops; the rules stand in transfers.py.
"""

import asyncio
import concurrent.futures
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

    def until_ended(self) -> Awaitable[None]:
        """Return what is done when besides its image is free."""
        ...


class _By(Enum):
    URL = "url"
    IDENTITY = "identity"


#: What an image is found by.
_Key = tuple[_By, object]


class _Users:
    """Those that have not left an image. There may be thousands, and as many that wait: all for one future."""

    def __init__(self) -> None:
        self.transfers: set[EndingTransfer] = set()
        self.gone: concurrent.futures.Future[None] = concurrent.futures.Future()


class EndingTransfers:
    """All that were cancelled, until they have ended. Its owner adds and removes them, one at a time."""

    def __init__(self) -> None:
        self._tickets: dict[str, set[EndingTransfer]] = {}
        self._keys: dict[EndingTransfer, set[_Key]] = {}  # of images that were not left
        self._users: dict[_Key, _Users] = {}
        self._identified = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, transfer: EndingTransfer) -> None:
        """Have others wait for this one. Again when it was cancelled: meanwhile its image may have become known."""
        keys = self._keys.setdefault(transfer, set())
        self._tickets.setdefault(transfer.ticket.ticket_id, set()).add(transfer)
        if transfer.has_left:
            return
        for key in _keys_of(transfer) - keys:
            keys.add(key)
            self._users.setdefault(key, _Users()).transfers.add(transfer)
            self._identified += key[0] is _By.IDENTITY

    def leave(self, transfer: EndingTransfer) -> None:
        """Have nobody wait any more for one that has left, as far as its image goes, if it was added."""
        keys = self._keys.get(transfer, set())
        while keys:
            key = keys.pop()
            users = self._users[key]
            users.transfers.remove(transfer)
            self._identified -= key[0] is _By.IDENTITY
            if not users.transfers:
                del self._users[key]
                users.gone.set_result(None)

    def remove(self, transfer: EndingTransfer) -> None:
        """Forget one that has left and ended, if it was added."""
        if self._keys.pop(transfer, None) is None:
            return
        ticket_id = transfer.ticket.ticket_id
        self._tickets[ticket_id].remove(transfer)
        if not self._tickets[ticket_id]:
            del self._tickets[ticket_id]

    def all(self) -> list[EndingTransfer]:
        """Return all of them."""
        return list(self._keys)

    def of_ticket(self, ticket_id: str) -> list[EndingTransfer]:
        """Return those of a ticket id: replaced ones, removed ones."""
        return list(self._tickets.get(ticket_id, ()))

    @property
    def any_identified(self) -> bool:
        """Tell whether some may use an image that is known by its identity."""
        return self._identified > 0

    def uses(self, url: str, identity: object, *, but: object) -> bool:
        """Tell whether one may still use an image of this url or identity; None: unknown. but: who asks."""
        return any(users.transfers - {but} for users in self._of_image(url, identity))

    async def until_free(self, url: str, identity: object) -> None:
        """Wait until nobody uses an image."""
        while found := self._of_image(url, identity):
            await asyncio.shield(asyncio.wrap_future(found[0].gone))

    def _of_image(self, url: str, identity: object) -> list[_Users]:
        keys: list[_Key] = [(_By.URL, url), (_By.IDENTITY, identity)]
        return [users for key in keys if (users := self._users.get(key)) is not None]


def _keys_of(transfer: EndingTransfer) -> set[_Key]:
    url: _Key = (_By.URL, transfer.ticket.url)
    return {url} if transfer.identity is None else {url, (_By.IDENTITY, transfer.identity)}
