# SPDX-License-Identifier: Apache-2.0
"""The end of one transfer, from its cancellation until its image is free.

An image is free when no cancelled transfer uses it; see transfers/canceled.py.
"""

import asyncio
import logging
from collections.abc import Callable

from ..runtime import logs
from .canceled import CanceledTransfers
from .permission import Permission
from .rate import Pauses
from .ticket import Ticket
from .traffic import Traffic
from .transfer_image import Identify, TransferImage

log = logging.getLogger(__name__)


class TransferEnd:
    """Follow the end of a cancelled transfer in three steps.

    The transfer is quiet when no operation or lane runs. It has left when its image is closed. It has ended when its
    image is free: when no other of the `canceled` transfers uses it. `pauses` is the time that does not count for the
    rate.
    """

    def __init__(
        self,
        ticket: Ticket,
        permission: Permission,
        traffic: Traffic,
        pauses: Pauses,
        image: TransferImage,
        canceled: CanceledTransfers,
        identify: Identify,
    ) -> None:
        self.ticket = ticket
        self._permission = permission
        self._traffic = traffic
        self._pauses = pauses
        self._image = image
        self._canceled = canceled
        self._identify = identify
        self._quiet, self._left, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._when_left: list[Callable[[TransferEnd], None]] = []
        self._when_ended: list[Callable[[TransferEnd], None]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to wait for the end. The cancel calls this once."""
        self.settle()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def settle(self) -> None:
        """Complete the first step if nothing runs and the image is not being opened."""
        busy = self._traffic.any or self._image.on_its_way
        if self._permission.canceled and not busy:
            self._quiet.set()

    async def until_ended(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    def when_left(self, callback: Callable[["TransferEnd"], None]) -> None:
        """Call a function when the transfer has left its image, or at once if it has left it already."""
        if self.has_left:
            callback(self)
        else:
            self._when_left.append(callback)

    def when_ended(self, callback: Callable[["TransferEnd"], None]) -> None:
        """Call a function when the transfer has ended, or at once if it has ended already."""
        if self.has_ended:
            callback(self)
        else:
            self._when_ended.append(callback)

    @property
    def has_left(self) -> bool:
        """Tell whether the transfer was cancelled, none of its operations or lanes runs, and its image is closed."""
        return self._left.is_set()

    @property
    def has_ended(self) -> bool:
        """Tell whether the transfer has left its image, and no other cancelled transfer uses it, under any url."""
        return self._ended.is_set()

    @property
    def identity(self) -> object:
        """Return the identity of the image that is or was open, if it is known."""
        return self._image.identity

    @property
    def in_use(self) -> bool:
        """Tell whether the image is used by requests of this transfer, by its open or close, or by a cancelled one."""
        others = self._canceled.uses(self.ticket.url, self.identity, but=self)
        return bool(self._traffic.running or self._image.on_its_way or others)

    async def _run(self) -> None:
        await self._quiet.wait()
        await self._image.close()
        paused = self._pauses.until(self._permission.lease.active)
        fields = self._traffic.fields(self._permission.used, paused)
        log.info("transfer ended", extra=logs.fields(transfer=self.ticket.log_name, **fields))
        self._left.set()
        self._tell(self._when_left)
        identity = self.identity
        if identity is None and self._canceled.any_identified:
            identity = await self._identify(self.ticket)
        await self._canceled.until_free(self.ticket.url, identity)
        self._ended.set()
        self._tell(self._when_ended)

    def _tell(self, callbacks: list[Callable[["TransferEnd"], None]]) -> None:
        while callbacks:  # and drop them, because they refer to the transfer
            callbacks.pop(0)(self)
