# SPDX-License-Identifier: Apache-2.0
"""The image of a transfer: opened for the first who asks, once for all, and closed when nobody uses it any more.

Shared by the event loops; the rules stand in transfers.py.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

from . import logs
from .errors import DENIED, Canceled, Error, Forbidden
from .storage.base import Backend, Operation
from .tickets import Ticket

log = logging.getLogger(__name__)

OpenBackend = Callable[[Ticket], Awaitable[Backend]]


class Predecessor(Protocol):
    """A cancelled transfer, as those see it that come after it. It may be about to be cancelled."""

    @property
    def has_ended(self) -> bool:
        """Tell whether it was cancelled, and nothing of it is left."""
        ...

    def has_open(self, identity: object) -> bool:
        """Tell whether its image is this one, too, by whatever name; None: nobody knows."""
        ...

    def until_ended(self) -> Awaitable[None]:
        """Return what is done when it has ended."""
        ...


class Predecessors:
    """Whom a transfer waits for: others must have left its image before it is opened, and before it counts as ended.

    after: cancelled transfers of the same url. Their last writes must come before our first one, and who removes this
    ticket wants the image left alone, so opening and ending wait for them. ending: all cancelled transfers; one of them
    may have the same image by another name, which is known when it is open.
    """

    def __init__(self, after: Sequence[Predecessor], ending: Collection[Predecessor]) -> None:
        self._after = after
        self._ending = ending

    @property
    def all_ended(self) -> bool:
        """Tell whether those of the same url have ended."""
        return all(other.has_ended for other in self._after)

    async def until_ended(self) -> None:
        """Wait until those of the same url have ended."""
        for other in self._after:
            await other.until_ended()
        self._after = ()

    async def until_left(self, identity: object) -> None:
        """Wait until none has this image open."""
        for other in list(self._ending):
            if other.has_open(identity):
                await other.until_ended()


class TransferImage:
    """The image of one transfer, open or not. Thread-safe.

    lock: the transfer's. It guards what is here, too, so that the transfer sees and changes both in one step. Where
    that matters, the transfer holds it when it calls. at_rest: called with the lock when the image was opened or let go
    of, or that failed.
    """

    def __init__(
        self,
        ticket: Ticket,
        open_backend: OpenBackend,
        before: Predecessors,
        lock: threading.Lock,
        at_rest: Callable[[], None],
    ) -> None:
        self._ticket = ticket
        self._open_backend = open_backend
        self._before = before
        self._lock = lock
        self._at_rest = at_rest
        #: The image if it is open. Each request reads it, and only this class changes it.
        self.opened: Backend | None = None
        self._identity: object = None  # of the image until it is closed
        self._opening: concurrent.futures.Future[Backend] | None = None
        self._open_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def on_its_way(self) -> bool:
        """Tell whether the image is being opened, or let go of."""
        return self._opening is not None

    def is_open(self, identity: object) -> bool:
        """Tell whether the image that is open, or being closed, is this one; None: nobody knows."""
        return identity is not None and self._identity == identity

    def open(self) -> "concurrent.futures.Future[Backend]":
        """Return what has the image, or will have it: it is opened unless it is, or is on its way.

        Called with the lock.
        """
        if self.opened is not None:
            opened: concurrent.futures.Future[Backend] = concurrent.futures.Future()
            opened.set_result(self.opened)
            return opened
        opening = self._opening
        if opening is None:
            opening = self._opening = concurrent.futures.Future()
            self._open_task = self._spawn(self._open(opening))
        return opening

    def release(self, wanted: Callable[[], bool]) -> None:
        """Let go of the image, if it is open and that saves something. Called with the lock, while nobody uses it.

        wanted: asked, with the lock, when it is closed. If so it is opened again, otherwise who asked for it meanwhile
        gets Forbidden.
        """
        backend = self.opened
        if backend is None or not backend.info.reopenable:
            return
        self.opened = None
        opening = self._opening = concurrent.futures.Future()
        self._spawn(self._release(backend, opening, wanted))

    def stop_opening(self) -> None:
        """End an open that is under way: who waits for it gets Canceled."""
        task = self._open_task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def interrupt(self) -> None:
        """Make operations that were cancelled end, where they wait in storage."""
        backend = self.opened
        if backend is not None:
            backend.interrupt()

    async def close(self) -> None:
        """Close the image for ever, when those before have ended. Nobody uses it, and it is not on its way."""
        await self._before.until_ended()
        backend, self.opened = self.opened, None
        if backend is not None:
            await self._close(backend)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, opening: "concurrent.futures.Future[Backend]") -> None:
        try:
            await self._before.until_ended()
            backend = await self._open_backend(self._ticket)
            await self._others_left(backend)
        except BaseException as e:
            self._arrived()
            opening.set_exception(Canceled(DENIED) if isinstance(e, asyncio.CancelledError) else e)
            if not isinstance(e, Error):
                raise
            return
        self._arrived(backend)
        opening.set_result(backend)

    async def _others_left(self, backend: Backend) -> None:
        """Wait until nobody before has this image open. Closes it when the wait is cancelled."""
        identity = backend.info.identity
        try:
            await self._before.until_left(identity)
        except asyncio.CancelledError:
            await backend.close()
            raise

    async def _release(
        self, backend: Backend, opening: "concurrent.futures.Future[Backend]", wanted: Callable[[], bool]
    ) -> None:
        try:
            await backend.flush(Operation())
        except Error as e:  # it must not be forgotten that flushing fails
            log.warning("transfer %s: its image stays open: %s", self._ticket.log_name, e)
            self._arrived(backend)
            opening.set_result(backend)
            return
        await self._close(backend)
        log.info("expired, its image is closed", extra=logs.fields(transfer=self._ticket.log_name))
        with self._lock:
            opens = wanted()
            if opens:
                self._open_task = asyncio.current_task()
        if opens:
            await self._open(opening)
            return
        self._arrived()
        opening.set_exception(Forbidden(DENIED))

    def _arrived(self, backend: Backend | None = None) -> None:
        """Note that the image is not on its way any more: open, or None: not."""
        with self._lock:
            if backend is not None:
                self._identity = backend.info.identity
                self.opened = backend
            self._opening = self._open_task = None
            self._at_rest()

    async def _close(self, backend: Backend) -> None:
        try:
            await backend.close()
        except Error as e:
            log.warning("transfer %s: closing the image failed: %s", self._ticket.log_name, e)
        finally:
            self._identity = None


def arrival(opening: "concurrent.futures.Future[Backend]") -> "asyncio.Future[Backend]":
    """Return what has the image when it is open, for one who waits. Who gives up does not stop the open."""
    waiting = asyncio.wrap_future(opening)
    waiting.add_done_callback(_look_at)
    return asyncio.shield(waiting)


def _look_at(future: "asyncio.Future[Backend]") -> None:
    """Mark an error as seen: who waited for it may have been cancelled."""
    if not future.cancelled():
        future.exception()
