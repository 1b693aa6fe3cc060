# SPDX-License-Identifier: Apache-2.0
"""An NBD server for as long as an image is open: it is connected to again, and flushes tell what may be lost."""

import asyncio
import logging

from ...errors import ServerGone, StorageError
from ...nbdproto.client.negotiation import Agreed
from ...nbdproto.constants import CommandFlag
from ...urls.nbd import NbdAddress
from ..backend import Operation
from .handshake import Options
from .session import ClientSession, same_image

log = logging.getLogger(__name__)


class ReconnectingSession:
    """Keep a session that works. For one loop."""

    def __init__(self, address: NbdAddress, options: Options, connections: int, session: ClientSession) -> None:
        #: Why each flush fails from now on.
        self.flush_failure: StorageError | None = None
        self.address = address
        self._options = options
        self._connections = connections
        self._session = session
        self._connecting: asyncio.Task[None] | None = None

    @property
    def agreed(self) -> Agreed:
        """Return what was negotiated the last time."""
        return self._session.agreed

    @property
    def unflushed(self) -> bool:
        """Tell whether changes may be lost when nothing is flushed any more, or are already."""
        return self.flush_failure is not None or self._session.lost_changes

    async def current(self, op: Operation) -> ClientSession:
        """Return a session that works. Raises ServerGone, Canceled.

        Who waits while another operation connects in vain fails with it: a server that does not answer costs all of
        them one timeout, not each of them one after the other.
        """
        op.require_running()
        if self._connecting is not None or not self._session.alive:
            await self._connected()
            op.require_running()
        return self._session

    async def _connected(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._reconnect())
        connecting = self._connecting
        try:
            await connecting
        except ServerGone as e:
            raise e.with_traceback(None) from None  # one for all who wait
        finally:
            if self._connecting is connecting:
                self._connecting = None

    async def _reconnect(self) -> None:
        before = self._session
        await before.close()
        if before.lost_changes and self.flush_failure is None:
            self.flush_failure = ServerGone(str(self.address), "it left before all changes were flushed")
            log.error("%s", self.flush_failure)
        now = await ClientSession.open(self.address, self._options, self._connections)
        if not same_image(before.agreed, now.agreed):
            await now.close()
            raise ServerGone(str(self.address), "it came back with another image")
        self._session = now

    async def flush(self, op: Operation) -> None:
        """Put everything that completed before on stable storage."""
        session = await self.current(op)
        if self.flush_failure is not None:
            raise self.flush_failure.with_traceback(None)
        try:
            await session.flush(op)
        except StorageError as e:
            self.failed(e, CommandFlag.FUA)
            raise

    def failed(self, error: StorageError, flags: int) -> None:
        """Let each later flush fail if what has failed had FUA: other writes' data may be what was lost.

        See Backend.flush(), which names the same rule of other storage.
        Whether something is lost because the server is gone is known when it is back.
        """
        if flags & CommandFlag.FUA and self.flush_failure is None and not isinstance(error, ServerGone):
            self.flush_failure = error

    def drop_canceled(self) -> None:
        """End cancelled requests that were not sent yet."""
        self._session.drop_canceled()

    async def close(self) -> None:
        """Say goodbye and wait for the end."""
        await self._session.close()
