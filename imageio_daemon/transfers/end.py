# SPDX-License-Identifier: Apache-2.0
"""The end of one transfer, from its cancellation until its image is free.

An image is free when no cancelled transfer uses it; see transfers/ending.py. Shared by the event loops;
transfers/__init__.py has the rules.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable

from ..service import logs
from .ending import EndingTransfers
from .image import Identify, TransferImage
from .permission import Permission
from .rate import Pauses
from .ticket import Ticket
from .traffic import Traffic

log = logging.getLogger(__name__)


class TransferEnd:
    """Follow the end of a cancelled transfer in three steps. Thread-safe.

    Quiet: no operation or lane runs. Left: its image is closed. Ended: its image is free. pauses: the time
    that does not count for the rate. ending: all cancelled transfers; the last step waits for those on the same image.
    """

    def __init__(
        self,
        ticket: Ticket,
        permission: Permission,
        traffic: Traffic,
        pauses: Pauses,
        image: TransferImage,
        ending: EndingTransfers,
        identify: Identify,
    ) -> None:
        self.ticket = ticket
        self._permission = permission
        self._traffic = traffic
        self._pauses = pauses
        self._image = image
        self._ending = ending
        self._identify = identify
        self._quiet: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to wait for the end, on the running loop. Called once, with the lock, by the cancel."""
        self.settle()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def settle(self) -> None:
        """Complete the first step if nothing runs and the image is not being opened. Called with the lock."""
        busy = self._traffic.any or self._image.on_its_way
        if self._permission.canceled and not busy and not self._quiet.done():
            self._quiet.set_result(None)

    def until_ended(self) -> "asyncio.Future[None]":
        """Return a future of the running loop for the end. Cancelling the future does not stop the end."""
        return asyncio.shield(asyncio.wrap_future(self._ended))

    def when_left(self, callback: Callable[["TransferEnd"], None]) -> None:
        """Call a function, in any thread, when the transfer has left its image."""
        self._left.add_done_callback(lambda _: callback(self))

    def when_ended(self, callback: Callable[["TransferEnd"], None]) -> None:
        """Call a function, in any thread, when the transfer has ended."""
        self._ended.add_done_callback(lambda _: callback(self))

    @property
    def has_left(self) -> bool:
        """Tell whether the transfer was cancelled, none of its operations or lanes runs, and its image is closed."""
        return self._left.done()

    @property
    def has_ended(self) -> bool:
        """Tell whether the transfer has left its image, and no other cancelled transfer uses it, under any url."""
        return self._ended.done()

    @property
    def identity(self) -> object:
        """Return the identity of the image that is or was open; None: it is unknown, or none was open."""
        return self._image.identity

    @property
    def in_use(self) -> bool:
        """Tell whether the image is used: by our requests, by our open or close, or by another cancelled transfer."""
        others = self._ending.uses(self.ticket.url, self.identity, but=self)
        return bool(self._traffic.running or self._image.on_its_way or others)

    async def _run(self) -> None:
        await asyncio.wrap_future(self._quiet)
        await self._image.close()
        paused = self._pauses.until(self._permission.lease.active)
        fields = self._traffic.fields(self._permission.used, paused)
        log.info("transfer ended", extra=logs.fields(transfer=self.ticket.log_name, **fields))
        self._left.set_result(None)
        identity = self.identity
        if identity is None and self._ending.any_identified:
            identity = await self._identify(self.ticket)
        await self._ending.until_free(self.ticket.url, identity)
        self._ended.set_result(None)
