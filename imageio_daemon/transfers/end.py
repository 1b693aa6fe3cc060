# SPDX-License-Identifier: Apache-2.0
"""The end of one transfer, from its cancellation until no cancelled transfer uses its image any more.

Shared by the event loops; the rules stand in transfers/transfer.py.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable

from ..service import logs
from .ending import EndingTransfers
from .image import Identify, TransferImage
from .permission import Permission
from .ticket import Ticket
from .traffic import Traffic

log = logging.getLogger(__name__)


class TransferEnd:
    """Follow how a cancelled transfer ends: nothing runs, its image is closed, its image is free. Thread-safe.

    ending: all cancelled transfers, of which those on the same image are waited for.
    """

    def __init__(
        self,
        ticket: Ticket,
        permission: Permission,
        traffic: Traffic,
        image: TransferImage,
        ending: EndingTransfers,
        identify: Identify,
    ) -> None:
        self.ticket = ticket
        self._permission = permission
        self._traffic = traffic
        self._image = image
        self._ending = ending
        self._identify = identify
        self._quiet: concurrent.futures.Future[None] = concurrent.futures.Future()  # nothing runs any more
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()  # and its image is closed
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()  # and no other one uses that
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to wait for the end on the running loop, once. Called with the lock, when the transfer is cancelled."""
        self.settle()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def settle(self) -> None:
        """Note whether the transfer is quiet: cancelled, nothing runs, no open is under way. Called with the lock."""
        busy = self._traffic.any or self._image.on_its_way
        if self._permission.canceled and not busy and not self._quiet.done():
            self._quiet.set_result(None)

    def until_ended(self) -> "asyncio.Future[None]":
        """Return what is done when the transfer has ended. Cancelling it does not stop the end."""
        return asyncio.shield(asyncio.wrap_future(self._ended))

    def when_left(self, callback: Callable[["TransferEnd"], None]) -> None:
        """Call back, in any thread, when the transfer has left its image; see has_left."""
        self._left.add_done_callback(lambda _: callback(self))

    def when_ended(self, callback: Callable[["TransferEnd"], None]) -> None:
        """Call back, in any thread, when the transfer has ended."""
        self._ended.add_done_callback(lambda _: callback(self))

    @property
    def has_left(self) -> bool:
        """Tell whether the transfer was cancelled, nothing of it runs, and its image is closed."""
        return self._left.done()

    @property
    def has_ended(self) -> bool:
        """Tell whether it has left its image, and no other cancelled transfer uses that, by whatever name."""
        return self._ended.done()

    @property
    def identity(self) -> object:
        """Return which image is open, or was when one was; None: nobody knows, or there was none."""
        return self._image.identity

    @property
    def in_use(self) -> bool:
        """Tell whether requests run or wait for the image, ours or those of others that were cancelled."""
        others = self._ending.uses(self.ticket.url, self.identity, but=self)
        return bool(self._traffic.running or self._image.on_its_way or others)

    async def _run(self) -> None:
        await asyncio.wrap_future(self._quiet)
        await self._image.close()
        fields = self._traffic.fields(self._permission.used)
        log.info("transfer ended", extra=logs.fields(transfer=self.ticket.log_name, **fields))
        self._left.set_result(None)
        identity = self.identity
        if identity is None and self._ending.any_identified:
            identity = await self._identify(self.ticket)
        await self._ending.until_free(self.ticket.url, identity)
        self._ended.set_result(None)
