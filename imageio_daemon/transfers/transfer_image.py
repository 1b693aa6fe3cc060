# SPDX-License-Identifier: Apache-2.0
"""The image of a transfer. The first request opens it for all, and it is closed after the last one."""

import asyncio
import contextvars
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..errors import DENIED, Canceled, Error, Forbidden, ImageInUse, StorageError
from ..runtime import logs
from ..runtime.background import surely
from ..runtime.request_activity import current
from ..storage.backend import Backend
from ..storage.durable import NO_RECORD, DurableRecord
from ..storage.operation import Operation
from .durable_records import DurableRecords, RecordWriter
from .ticket import Ticket

log = logging.getLogger(__name__)

OpenBackend = Callable[[Ticket], Awaitable[Backend]]
#: A function that returns the identity (BackendInfo.identity) of the image that a ticket names now, without keeping the
#: image open, or None if it is unknown.
Identify = Callable[[Ticket], Awaitable[object]]


class TransferImage:
    """The image of one transfer, open or not.

    `until_free` waits until no cancelled transfer uses the image of an identity. `at_rest` is called after each open
    and each release, also after one that failed.
    """

    def __init__(
        self,
        ticket: Ticket,
        open_backend: OpenBackend,
        until_free: Callable[[object], Awaitable[None]],
        at_rest: Callable[[], None],
        records: DurableRecords,
    ) -> None:
        self._ticket = ticket
        self._open_backend = open_backend
        self._until_free = until_free
        self._at_rest = at_rest
        self._records = records
        self._writer: RecordWriter | None = None
        #: The backend, if the image is open. Only this class changes it.
        self.opened: Backend | None = None
        #: The identity of the image that is or was last open, if it is known.
        self.identity: object = None
        #: Whether the next process goes on with the transfer, and has to find all of it in the record of what is
        #: durable.
        self.goes_on = False
        #: The error of the flush before the image was closed. The rule of Backend.flush() holds for later opens, too.
        self._flush_failure: Error | None = None
        self._opening: asyncio.Future[Backend] | None = None
        self._open_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def record(self) -> DurableRecord:
        """Return the record of durable ranges. It is empty if the image is not open, or has no record."""
        writer = self._writer
        return NO_RECORD if writer is None else writer.record

    @property
    def on_its_way(self) -> bool:
        """Return whether the image is being opened or released."""
        return self._opening is not None

    async def backend(self, require: Callable[[], None]) -> Backend:
        """Return the backend of the open image.

        The first request opens it, and requests that come before it is open share the result. After a failure, the next
        request tries again, and the same request gets the same failure again. `require` raises if the image must not be
        opened. Raises StorageError, Canceled, Forbidden. Cancelling the task does not stop the open.
        """
        backend, request = self.opened, current()
        if backend is not None:
            return backend
        failure = None if request is None else request.failure(self)
        if failure is not None:
            raise failure.with_traceback(None)
        require()
        if self._opening is None:
            self._opening = _arrival()
            self._open_task = self._spawn(self._open(self._opening))
        try:
            return await asyncio.shield(self._opening)
        except Exception as e:
            if request is not None:
                request.not_opened(self, e)
            raise

    def release(self, wanted: Callable[[], bool]) -> None:
        """Flush and close the image, if it is open. Call this while no operation or lane uses it.

        After the close, `wanted` is called. If it returns True, the image is opened again. Otherwise requests that came
        during the close get Forbidden. After a failed flush, each open fails with the error of the flush, because a
        flush through another handle may succeed although data was lost.
        """
        backend = self.opened
        if backend is None:
            return
        self.opened = None
        self._opening = _arrival()
        self._spawn(self._release(backend, self._opening, wanted))

    def stop_opening(self) -> None:
        """Cancel an open that is under way. Requests that wait for it get Canceled."""
        task = self._open_task
        if task is not None:
            # Not at once: a task that has not begun would end without a result for the requests that wait.
            asyncio.get_running_loop().call_soon(task.cancel)

    def interrupt(self) -> None:
        """End cancelled operations of the backend that wait for a thread or a connection."""
        backend = self.opened
        if backend is not None:
            backend.interrupt()

    async def close(self) -> None:
        """Close the image at the end of the transfer. Call this when no operation uses it and no open is under way."""
        backend, self.opened = self.opened, None
        if backend is not None:
            if self.goes_on and self.record is not NO_RECORD:
                await self._flush(backend)
            await self._close(backend)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        # Not in the context of the first request, because the image is for all requests.
        task = asyncio.get_running_loop().create_task(coroutine, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, opening: "asyncio.Future[Backend]") -> None:
        try:
            self._require_flushed()
            await self._until_free(None)
            backend = await self._open_backend(self._ticket)
            await self._others_left(backend)
            await self._record(backend)
        except BaseException as e:
            self._arrived()
            if isinstance(e, ImageInUse):
                log.warning("%s", e, extra=logs.fields(transfer=self._ticket.log_name, url=self._ticket.shown_url))
            opening.set_exception(Canceled(DENIED) if isinstance(e, asyncio.CancelledError) else e)
            if not isinstance(e, Error):
                raise
            return
        self._arrived(backend)
        opening.set_result(backend)

    def _require_flushed(self) -> None:
        if self._flush_failure is not None:
            raise self._flush_failure.with_traceback(None)

    async def _others_left(self, backend: Backend) -> None:
        """Wait until no cancelled transfer uses the image under another url. A cancelled task closes the image."""
        self.identity = backend.info.identity
        try:
            await self._until_free(self.identity)
        except asyncio.CancelledError:
            await backend.close()
            raise

    async def _record(self, backend: Backend) -> None:
        """Begin a record of durable ranges for the image. If that fails, close the image."""
        try:
            self._writer = await self._records.open(self._ticket, backend)
        except BaseException:
            await backend.close()
            raise

    async def _release(self, backend: Backend, opening: "asyncio.Future[Backend]", wanted: Callable[[], bool]) -> None:
        await self._flush(backend)
        await self._close(backend)
        log.info("expired, its image is closed", extra=logs.fields(transfer=self._ticket.log_name))
        if wanted():
            self._open_task = asyncio.current_task()
            await self._open(opening)
            return
        self._arrived()
        opening.set_exception(Forbidden(DENIED))

    async def _flush(self, backend: Backend) -> None:
        info = backend.info
        if not info.can_flush or not info.unflushed:
            return
        try:
            await surely(lambda: backend.flush(Operation()))
        except Error as e:
            log.error("transfer %s: its image could not be flushed, changes may be lost: %s", self._ticket.log_name, e)
            self._flush_failure = e
        except Exception:
            log.exception("transfer %s: its image could not be flushed, changes may be lost", self._ticket.log_name)
            self._flush_failure = StorageError(errno.EIO, "flush", "flush", "(failed unexpectedly)")

    def _arrived(self, backend: Backend | None = None) -> None:
        """Set the result of an open or a release: the open image, or None."""
        self.opened = backend
        self._opening = self._open_task = None
        self._at_rest()

    async def _close(self, backend: Backend) -> None:
        try:
            await backend.close()
        except Error as e:
            log.warning("transfer %s: closing the image failed: %s", self._ticket.log_name, e)
        except Exception:  # the end of the transfer, and so the removal of the ticket, must not wait for ever
            log.exception("transfer %s: closing the image failed", self._ticket.log_name)
        writer, self._writer = self._writer, None
        if writer is not None:
            await self._records.close(writer)


def _arrival() -> "asyncio.Future[Backend]":
    """Return a future for the open image."""
    arrival: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()
    arrival.add_done_callback(asyncio.Future.exception)  # nobody else may retrieve it, if all waits are cancelled
    return arrival
