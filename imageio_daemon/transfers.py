# SPDX-License-Identifier: Apache-2.0
"""Transfers: a ticket at work. Who may do what now, what is running, how far it came, and how it ends.

Everything here is shared by the event loops of the process. The rules, for all that loops share (transfers, backends,
the engine, buffers, limits, hashing):

- What is changed by several steps is guarded by a plain lock, held for a few steps and over no wait, no callback of a
  peer, no storage. One read, or one change of a set or dict, needs none: the GIL makes it whole.
- A shared object holds no asyncio primitive. Who waits for another loop waits for a concurrent future, or for a future
  of its own loop that the other one sets by call_soon_threadsafe.
- What belongs to a request (its operation, its buffers, its connection, their timers) lives on the loop that it came
  to. Another thread may ask it to end, and read its counters, no more.
- A loop may see late that a transfer was cancelled by another one, or that it has let go of its image after the
  ticket's expiry. begin() and add_lane() are where it finds out: whoever uses the image holds an operation or a lane,
  and it is closed when there is none. Only Backend.info and generation need none. Who has an image from before says
  which one it is; who has none begins first, and then asks for it.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import logs
from .ending import EndingTransfers
from .errors import DENIED, Canceled, Forbidden, OutOfRange, TooManyConnections
from .storage.base import Backend, Lease, Operation, ZeroMethod
from .storage.lane import Lane
from .tickets import Access, Ticket
from .traffic import Traffic
from .transferimage import Identify, OpenBackend, TransferImage, arrival

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class Transfer:
    """One ticket's state. Thread-safe. ending: whom opening the image, and ending, wait for."""

    def __init__(
        self,
        ticket: Ticket,
        open_backend: OpenBackend,
        identify: Identify,
        ending: EndingTransfers,
        *,
        most_connections: int,
        clock: Clock,
    ) -> None:
        self.ticket = ticket
        self._identify = identify
        self._ending = ending
        self._most_connections = most_connections
        self._clock = clock
        self._lock = threading.Lock()
        self._created = clock()
        self.lease = Lease(self._created, ticket.timeout)
        self._connections: dict[object, Callable[[], None] | None] = {}
        self._traffic = Traffic()
        self._image = TransferImage(ticket, open_backend, self._until_free, self._lock, self._settle)
        #: The image has all bytes of the ticket, as far as is known: images only grow.
        self.covered = False
        self._canceled = False
        # After cancel: nothing runs any more; the image is closed, too; and no other cancelled transfer uses it.
        self._quiet: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Transfer {self.ticket.log_name}>"

    # Permission

    def require(self, access: Access | None) -> None:
        """Raise Forbidden unless the ticket allows the access now. None: any use of a living ticket."""
        if self._canceled or self._has_expired():
            raise Forbidden(DENIED)
        if access is not None and not self.ticket.may(access):
            raise Forbidden(f"{DENIED}: ticket forbids {access.value}")

    @property
    def in_force(self) -> bool:
        """Tell whether the ticket is valid, or was when what runs began. May be asked in any thread."""
        return not (self._canceled or self._has_expired()) or self.running > 0

    def require_range(self, offset: int, length: int) -> None:
        """Raise OutOfRange unless the bytes are inside the ticket."""
        end, size = offset + length, self.ticket.size
        if end > size:
            raise OutOfRange(f"Requested range {offset}..{end} is outside of the ticket's {size} bytes", size)

    def extend(self, timeout: int) -> None:
        """Let the ticket expire timeout seconds from now.

        0 ends it: requests that run go on, but their end does not renew it. Only another extension revives it.
        """
        with self._lock:
            now = self._clock()
            if timeout:
                self.lease.expires = now + timeout
            else:
                self.lease.end(now)

    # Connections

    def connect(self, connection: object, on_cancel: Callable[[], None] | None = None) -> None:
        """Count a connection that uses this transfer; again is no change. Raises TooManyConnections, Forbidden.

        on_cancel: called, in any thread, when the transfer is cancelled, or lets go of its image after the ticket's
        expiry, maybe more than once; for connections that end with it.
        """
        with self._lock:
            if self._canceled:
                raise Forbidden(DENIED)
            if connection in self._connections:
                return
            if len(self._connections) >= self._most_connections:
                raise TooManyConnections(f"Too many connections on one ticket, the limit is {self._most_connections}")
            self._connections[connection] = on_cancel

    def disconnect(self, connection: object) -> None:
        """Forget a connection."""
        with self._lock:
            self._connections.pop(connection, None)

    # Operations

    @contextmanager
    def track(
        self, access: Access | None, offset: int = 0, length: int = 0, *, part: bool = False
    ) -> Iterator[Operation]:
        """Run the block as an operation; see begin()."""
        op = self.begin(access, offset, length, part=part)
        try:
            yield op
        finally:
            op.release()

    def begin(
        self,
        access: Access | None,
        offset: int = 0,
        length: int = 0,
        *,
        part: bool = False,
        backend: Backend | None = None,
    ) -> Operation:
        """Begin an operation of this transfer: seen in the status, ended by cancel, renewing the ticket.

        part: of a request that has another operation, by which it is counted. backend: the image that it is for, taken
        before. The caller releases it. It lasts until the storage has let go of it, too. Raises Forbidden when the
        transfer is cancelled, or has let go of that image.
        """
        op = Operation(offset, length, self._operation_ended)
        with self._lock:
            self._require_image(backend)
            self._traffic.begin(op, counts=access is not None and self.ticket.counts(access), part=part)
        return op

    def abandon(self, op: Operation) -> None:
        """Let what storage still does for an operation end at its next step: nobody waits for it any more."""
        op.cancel()
        if op.in_storage:
            self._image.interrupt()

    def zeroed(self, method: ZeroMethod, length: int) -> None:
        """Note how bytes were zeroed, for the log."""
        with self._lock:
            self._traffic.zeroed(method, length)

    # Lanes: connections whose requests C serves, without an operation for each

    def add_lane(self, lane: Lane, backend: Backend) -> None:
        """Count what the lane does on an image, until remove_lane(). Raises Forbidden as begin() does."""
        with self._lock:
            self._require_image(backend)
            self._traffic.add_lane(lane)

    def remove_lane(self, lane: Lane) -> None:
        """Let go of a lane that has ended."""
        with self._lock:
            try:
                self._traffic.remove_lane(lane)
            finally:
                self._settle()

    def collect(self) -> None:
        """Fetch what lanes have counted."""
        with self._lock:
            self._traffic.collect()

    # The image

    @property
    def opened(self) -> Backend | None:
        """Return the image if it is open."""
        return self._image.opened

    async def backend(self) -> Backend:
        """Return the open image; the first caller opens it. Raises StorageError; the next caller tries again."""
        backend = self._image.opened
        if backend is not None:
            return backend
        with self._lock:
            if self._canceled:
                raise Canceled(DENIED)
            opening = self._image.open()
        return await arrival(opening)

    def release_expired(self) -> None:
        """Let go of the image when the ticket has expired and no request runs, whatever connections there are.

        Those that end with the transfer, end. The others open it again when the ticket is revived. Lanes are waited
        for: the next call finds them gone. Returns at once.
        """
        if self._image.opened is None or not self._has_expired():
            return
        with self._lock:
            if self._canceled or self.running or self._image.on_its_way:
                return
            connections = self._connections_that_end()
            if not self._traffic.any:
                self.covered = False
                self._image.release(wanted=lambda: not (self._canceled or self._has_expired()))
        for on_cancel in connections:
            on_cancel()

    def _require_image(self, backend: Backend | None) -> None:
        """Raise Forbidden unless the image is still this one; None: whatever it will be. Called with the lock."""
        if self._canceled or (backend is not None and backend is not self._image.opened):
            raise Forbidden(DENIED)

    def _connections_that_end(self) -> list[Callable[[], None]]:
        return [on_cancel for on_cancel in self._connections.values() if on_cancel is not None]

    # The end

    def cancel(self) -> None:
        """Stop new requests and make running ones end at their next step. Returns at once."""
        with self._lock:
            if self._canceled:
                return
            self._canceled = True
            running = self._traffic.all()
            connections = self._connections_that_end()
            self._settle()
            end = asyncio.get_running_loop().create_task(self._end())
            self._tasks.add(end)
            end.add_done_callback(self._tasks.discard)
        self._image.stop_opening()
        for op in running:
            op.cancel()
        for on_cancel in connections:
            on_cancel()
        self._image.interrupt()

    def until_ended(self) -> "asyncio.Future[None]":
        """Return what is done when besides no other cancelled transfer uses the image, by whatever name."""
        return asyncio.shield(asyncio.wrap_future(self._ended))

    def when_left(self, callback: Callable[["Transfer"], None]) -> None:
        """Call back, in any thread, when the transfer has left its image; see has_left."""
        self._left.add_done_callback(lambda _: callback(self))

    def when_ended(self, callback: Callable[["Transfer"], None]) -> None:
        """Call back, in any thread, when the transfer has ended."""
        self._ended.add_done_callback(lambda _: callback(self))

    @property
    def has_left(self) -> bool:
        """Tell whether the transfer was cancelled, nothing of it runs, and its image is closed."""
        return self._left.done()

    @property
    def identity(self) -> object:
        """Return which image is open, or was when one was; None: nobody knows, or there was none."""
        return self._image.identity

    @property
    def running(self) -> int:
        """Return how many operations run just now."""
        return self._traffic.running

    @property
    def in_use(self) -> bool:
        """Tell whether requests run or wait for the image, ours or those of others that were cancelled."""
        others = self._ending.uses(self.ticket.url, self.identity, but=self)
        return bool(self.running or self._image.on_its_way or others)

    @property
    def has_ended(self) -> bool:
        """Tell whether the transfer was cancelled, and its image is left alone; see until_ended()."""
        return self._ended.done()

    @property
    def canceled(self) -> bool:
        """Tell whether the transfer was cancelled."""
        return self._canceled

    # Report

    def status(self) -> dict[str, Any]:
        """Return the ticket and its state, as the control service tells it."""
        status = self.ticket.to_json()
        with self._lock:
            active = bool(self.running)
            status |= {
                "expires": int(self.lease.expires),
                "active": active,
                "canceled": self._canceled,
                "connections": len(self._connections),
                "idle_time": 0 if active else int(self._clock() - self.lease.active),
                "storage_wait": int(self._traffic.storage_wait),
            }
            if len(self.ticket.ops) != len(Access):
                status["transferred"] = self._traffic.transferred()
        return status

    def _has_expired(self) -> bool:
        return self._clock() >= self.lease.expires

    def _operation_ended(self, op: Operation) -> None:
        with self._lock:
            self._traffic.end(op)
            self.lease.renew(self._clock())
            self._settle()

    def _settle(self) -> None:
        """Say that all is quiet, once: cancelled, no operation left and no open under way. Called with the lock."""
        left = self._traffic.any or self._image.on_its_way
        if self._canceled and not left and not self._quiet.done():
            self._quiet.set_result(None)

    async def _end(self) -> None:
        await asyncio.wrap_future(self._quiet)
        await self._image.close()
        fields = self._traffic.fields(self.lease.active - self._created)
        log.info("transfer ended", extra=logs.fields(transfer=self.ticket.log_name, **fields))
        self._left.set_result(None)
        identity = self.identity
        if identity is None and self._ending.any_identified:
            identity = await self._identify(self.ticket)
        await self._until_free(identity)
        self._ended.set_result(None)

    async def _until_free(self, identity: object) -> None:
        await self._ending.until_free(self.ticket.url, identity)
