# SPDX-License-Identifier: Apache-2.0
"""Transfers: a ticket in use, with its permission, connections, operations, lanes, image, progress and end.

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

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import DENIED, Canceled, Forbidden
from ..lanes.lane import Lane
from ..storage.backend import Backend, Operation, ZeroMethod
from .connections import Connections
from .end import TransferEnd
from .ending import EndingTransfers
from .image import Identify, OpenBackend, TransferImage, arrival
from .permission import Clock, Permission
from .ticket import Access, Ticket
from .traffic import Traffic


class Transfer:
    """One ticket's state. Thread-safe: all parts of it are guarded by one lock.

    ending: the cancelled transfers, for which opening the image waits, and the end of this one. most_connections: that
    may use it at a time. clock: in seconds.
    """

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
        self._lock = threading.Lock()
        self.permission = Permission(ticket, self._lock, clock)
        self.connections = Connections(self.permission, self._lock, most_connections)
        self._traffic = Traffic()
        until_free = partial(ending.until_free, ticket.url)
        self._image = TransferImage(ticket, open_backend, until_free, self._lock, self._settle)
        self.end = TransferEnd(ticket, self.permission, self._traffic, self._image, ending, identify)
        #: The image has all bytes of the ticket, as far as is known: images only grow.
        self.covered = False

    def __repr__(self) -> str:
        return f"<Transfer {self.ticket.log_name}>"

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
        """Note by which method length bytes were zeroed, for the log."""
        with self._lock:
            self._traffic.zeroed(method, length)

    @property
    def running(self) -> int:
        """Return how many requests run just now."""
        return self._traffic.running

    @property
    def in_force(self) -> bool:
        """Tell whether the ticket is valid, or was when what runs began. May be asked in any thread."""
        return self.permission.valid or self.running > 0

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
        """Return the open image; the first caller opens it. Raises Canceled, StorageError; the next one tries again."""
        backend = self._image.opened
        if backend is not None:
            return backend
        with self._lock:
            if self.permission.canceled:
                raise Canceled(DENIED)
            opening = self._image.open()
        return await arrival(opening)

    def release_expired(self) -> None:
        """Let go of the image when the ticket has expired and no request runs, whatever connections there are.

        Connections that end with the transfer, end. The others open it again when the ticket is revived. Lanes are
        waited for: the next call finds them gone. Returns at once.
        """
        if self._image.opened is None or not self.permission.expired:
            return
        with self._lock:
            if self.permission.canceled or self.running or self._image.on_its_way:
                return
            callbacks = self.connections.callbacks()
            if not self._traffic.any:
                self.covered = False
                self._image.release(wanted=lambda: self.permission.valid)
        for on_cancel in callbacks:
            on_cancel()

    def _require_image(self, backend: Backend | None) -> None:
        """Raise Forbidden unless the image is still this one; None: whatever it will be. Called with the lock."""
        if self.permission.canceled or (backend is not None and backend is not self._image.opened):
            raise Forbidden(DENIED)

    # The end

    def cancel(self) -> None:
        """Stop new requests and make running ones end at their next step. Returns at once; see TransferEnd."""
        with self._lock:
            if self.permission.canceled:
                return
            self.permission.canceled = True
            running = self._traffic.all()
            callbacks = self.connections.callbacks()
            self.end.begin()
        self._image.stop_opening()
        for op in running:
            op.cancel()
        for on_cancel in callbacks:
            on_cancel()
        self._image.interrupt()

    def _operation_ended(self, op: Operation) -> None:
        with self._lock:
            self._traffic.end(op)
            self.permission.renew()
            self._settle()

    def _settle(self) -> None:
        """Note whether all is quiet, when something has ended. Called with the lock."""
        self.end.settle()

    # Report

    def status(self) -> dict[str, Any]:
        """Return the ticket and its state, as the control service tells it: times in seconds, sizes in bytes."""
        status = self.ticket.to_json()
        with self._lock:
            active = bool(self.running)
            status |= {
                "expires": int(self.permission.lease.expires),
                "active": active,
                "canceled": self.permission.canceled,
                "connections": len(self.connections),
                "idle_time": 0 if active else int(self.permission.idle),
                "storage_wait": int(self._traffic.storage_wait),
            }
            if len(self.ticket.ops) != len(Access):
                status["transferred"] = self._traffic.transferred()
        return status
