# SPDX-License-Identifier: Apache-2.0
"""An NBD server for as long as an image is open: it is connected to again, and flushes tell what may be lost."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import ServerGone, StorageError
from ..nbdproto.client import Agreed
from ..nbdproto.constants import CommandFlag
from ..nbdurl import NbdAddress
from .base import Operation
from .nbdhandshake import Options
from .nbdsession import Session, same_image

log = logging.getLogger(__name__)


class Link:
    """Keep a session that works. For one loop."""

    def __init__(self, address: NbdAddress, options: Options, connections: int, session: Session) -> None:
        #: Why each flush fails from now on.
        self.flush_failure: StorageError | None = None
        self._address = address
        self._options = options
        self._connections = connections
        self._session = session
        self._connecting = asyncio.Lock()
        self._unreachable: ServerGone | None = None  # why it was not connected to the last time

    @property
    def agreed(self) -> Agreed:
        """Return what was negotiated the last time."""
        return self._session.agreed

    @property
    def unflushed(self) -> bool:
        """Tell whether changes may be lost when nothing is flushed any more, or are already."""
        return self.flush_failure is not None or self._session.lost_changes

    async def current(self, op: Operation) -> Session:
        """Return a session that works. Raises ServerGone, Canceled.

        Who waits while another operation connects in vain fails with it: a server that does not answer costs all of
        them one timeout, not each of them one after the other.
        """
        before = self._unreachable
        async with self._connecting:
            op.require_running()
            if not self._session.alive:
                if self._unreachable is not None and self._unreachable is not before:
                    raise self._unreachable.with_traceback(None)
                try:
                    await self._reconnect()
                except ServerGone as e:
                    self._unreachable = e
                    raise
        return self._session

    async def _reconnect(self) -> None:
        before = self._session
        await before.close()
        if before.lost_changes and self.flush_failure is None:
            self.flush_failure = ServerGone(str(self._address), "it left before all changes were flushed")
            log.error("%s", self.flush_failure)
        now = await Session.open(self._address, self._options, self._connections)
        if not same_image(before.agreed, now.agreed):
            await now.close()
            raise ServerGone(str(self._address), "it came back with another image")
        self._session = now

    async def flush(self, op: Operation) -> None:
        """Put everything that completed before on stable storage."""
        session = await self.current(op)
        if self.flush_failure is not None:
            raise self.flush_failure.with_traceback(None)
        async with self.failing_flushes(CommandFlag.FUA):
            await session.flush(op)

    @asynccontextmanager
    async def failing_flushes(self, flags: int) -> AsyncIterator[None]:
        """Let each later flush fail when what runs has failed and has FUA: other writes' data may be what was lost."""
        try:
            yield
        except ServerGone:
            raise  # whether something is lost is known when it is back
        except StorageError as e:
            if flags & CommandFlag.FUA and self.flush_failure is None:
                self.flush_failure = e
            raise

    def drop_canceled(self) -> None:
        """End cancelled requests that were not sent yet."""
        self._session.drop_canceled()

    async def close(self) -> None:
        """Say goodbye and wait for the end."""
        await self._session.close()
