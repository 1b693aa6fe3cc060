# SPDX-License-Identifier: Apache-2.0
"""The place of one connection within the limit on connections in lanes."""

import asyncio
from collections.abc import Callable

from ....errors import Unavailable
from ....lanes.shared import Places, WaitingConnection
from ....transfers.transfer import Transfer


def busy() -> Unavailable:
    """Return the error of a request that has waited too long for a place."""
    return Unavailable("Too many requests are served now")


class LanePlace:
    """Take a place, or wait for one, for one transfer at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._transfer: Transfer | None = None  # whose place it is, if one is taken
        self._waiting: tuple[WaitingConnection, asyncio.TimerHandle] | None = None

    def enter(self, transfer: Transfer) -> bool:
        """Take a place for the transfer, unless it has one. Return whether it has one now; if not, call wait()."""
        if self._transfer is not transfer:
            self.leave()
            self._transfer = transfer if self._places.enter(transfer) else None
        return self._transfer is not None

    def leave(self) -> None:
        """Give the place back, if one is taken."""
        if self._transfer is not None:
            self._places.leave(self._transfer)
        self._transfer = None

    def wait(
        self, transfer: Transfer, seconds: float, granted: Callable[[], None], expired: Callable[[], None]
    ) -> None:
        """Wait for a place, at most `seconds`. Then call `granted` or `expired`, unless abandon() was called before."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self._expire, expired)
        waiting = self._places.wait(transfer, lambda: loop.call_soon(self._grant, transfer, granted))
        self._waiting = waiting, timer

    async def get(self, transfer: Transfer, seconds: float) -> None:
        """Take a place for the transfer, unless it has one. Wait at most `seconds` for it. Raises Unavailable."""
        if self.enter(transfer):
            return
        served: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def granted() -> None:
            if served.done():
                self.leave()
            else:
                served.set_result(True)

        def expired() -> None:
            if not served.done():  # it is if the task was cancelled in this step of the loop
                served.set_result(False)

        self.wait(transfer, seconds, granted, expired)
        try:
            in_time = await served
        except BaseException:
            self.abandon()
            self.leave()  # it has the place if it was cancelled just after the grant
            raise
        if not in_time:
            raise busy()

    def abandon(self) -> bool:
        """Stop waiting. Return False if the connection did not wait, or if `granted` is about to be called."""
        if self._waiting is None or not self._places.abandon(self._waiting[0]):
            return False
        self._waiting[1].cancel()
        self._waiting = None
        return True

    def _grant(self, transfer: Transfer, granted: Callable[[], None]) -> None:
        waited, self._waiting, self._transfer = self._waiting, None, transfer
        if waited is not None:
            waited[1].cancel()
        granted()

    def _expire(self, expired: Callable[[], None]) -> None:
        if self.abandon():
            expired()
