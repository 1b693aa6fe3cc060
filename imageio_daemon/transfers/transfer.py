# SPDX-License-Identifier: Apache-2.0
"""A transfer: a ticket in use, with its permission, connections, operations, lanes, image, status and end."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypedDict, Unpack

from ..errors import DENIED, Forbidden
from ..lanes.lane import Lane, Terms
from ..net.tls_socket import TlsSocket
from ..runtime.request_activity import does
from ..storage.backend import Backend
from ..storage.durable import DurableRecord
from ..storage.operation import Kind, Operation, Totals
from .connections import Connections
from .durable_records import DurableRecords
from .end import CanceledTransfers, TransferEnd
from .permission import Permission, Seal
from .rate_limits import RateLimits
from .status import transfer_status
from .ticket import Access, Ticket
from .traffic import Clock, Traffic
from .transfer_image import Identify, OpenBackend, TransferImage

#: The key in kept_state of the report on a finalized image.
FINALIZED = "finalized"

_KINDS = {None: Kind.STAT, Access.READ: Kind.READ, Access.WRITE: Kind.WRITE}


class OperationOptions(TypedDict, total=False):
    """Options of Transfer.track(), also of those that call it.

    `kind` is for an operation that is no plain read or write. With `part`, another operation counts the request.
    """

    kind: Kind
    part: bool


class Transfer:
    """A ticket in use.

    `open_backend` opens the image, and `identify` returns its identity without keeping it open. The open of the image
    and the end of this transfer wait for the `canceled` transfers of the same image. At most `most_connections`
    connections may use the transfer at a time. The clock counts seconds.
    """

    def __init__(
        self,
        ticket: Ticket,
        open_backend: OpenBackend,
        identify: Identify,
        canceled: CanceledTransfers,
        *,
        records: DurableRecords,
        limits: RateLimits,
        most_connections: int,
        clock: Clock,
    ) -> None:
        self.ticket = ticket
        self.traffic = Traffic(clock)
        self.permission = Permission(ticket, Seal(self.traffic), clock)
        self.connections = Connections(self.permission, most_connections, clock)
        self._records = records
        #: The rate limit. All code that moves bytes of the image for a client takes them from this bucket before.
        self.bucket = limits.bucket(ticket)
        self._limits = limits
        until_free = partial(canceled.until_free, ticket.url)
        self._image = TransferImage(ticket, open_backend, until_free, self._settle, records)
        self.end = TransferEnd(ticket, self.permission, self.traffic, self._image, canceled, identify)
        #: Whether the ticket outlives the process. The store sets this.
        self.kept = False
        #: JSON values that outlive the process with the ticket. Ticket and values have less than 256 KiB. Change this
        #: in one step, without `await`, and then await TransferStore.keep(). A ticket that replaces this one begins
        #: with none.
        self.kept_state: dict[str, Any] = {}
        #: Whether the image is known to have all bytes of the ticket. It stays so, because images only grow.
        self.covered = False

    def __repr__(self) -> str:
        return f"<Transfer {self.ticket.log_name}>"

    def restore(self, remaining: float, state: dict[str, Any]) -> None:
        """Restore a kept ticket, which expires in `remaining` seconds. `state` becomes kept_state."""
        self.permission.extend(remaining)
        self.kept_state = state
        if FINALIZED in state:
            self.permission.seal.close()

    def limit(self, rate: int) -> None:
        """Limit the ticket to `rate` bytes per second, also running requests. 0 is no limit. Raises InvalidRequest."""
        self._limits.limit(self.bucket, rate)
        self.ticket = dataclasses.replace(self.ticket, rate=rate)

    # Operations

    @contextmanager
    def track(
        self, access: Access | None, offset: int = 0, length: int = 0, **options: Unpack[OperationOptions]
    ) -> Iterator[Operation]:
        """Run the block as an operation of this transfer.

        The status shows it, a cancel ends it, and its end renews the ticket. It ends when the block has ended, and
        storage has released it, too. The range is `length` bytes at `offset`. Pass access None for an operation that
        any access allows. Raises Forbidden if the transfer is cancelled. For a write, raises InUse while the image is
        verified, and Forbidden after it was finalized.
        """
        changes = access is Access.WRITE
        op = Operation(offset, length, self._operation_ended, options.get("kind", _KINDS[access]))
        self._require_may_begin(changes=changes)
        counts = access is not None and self.ticket.counts(access)
        self.traffic.begin(op, counts=counts, part=options.get("part", False), changes=changes)
        does(op.kind, offset, length)
        try:
            yield op
        finally:
            op.release()

    def _require_may_begin(self, *, changes: bool) -> None:
        self.permission.require_not_canceled()
        if changes:
            self.permission.seal.require_open()

    def abandon(self, op: Operation) -> None:
        """Cancel an operation whose request has ended early, and interrupt its wait in storage."""
        op.cancel()
        if op.in_storage:
            self._image.interrupt()

    @property
    def running(self) -> int:
        """Return how many requests run now."""
        return self.traffic.running

    @property
    def in_use(self) -> bool:
        """Return whether a request runs, or there is a connection that may begin one."""
        return self.running > 0 or (len(self.connections) > 0 and not self.permission.canceled)

    @property
    def in_force(self) -> bool:
        """Return whether the ticket is valid, or was valid when a running request began."""
        return self.permission.valid or self.running > 0

    @property
    def until(self) -> float:
        """Return when the ticket would expire if the process, and all running requests, ended now."""
        return self.permission.until(running=self.running > 0)

    # Lanes: connections whose requests C serves, without an Operation for each

    def add_lane(self, lane: Lane, backend: Backend, *, changes: bool) -> None:
        """Add a lane that uses the image of a backend, until remove_lane(). Pass changes=True if the lane may write.

        Raises Forbidden and InUse as track() does, and Forbidden if the transfer has released that image.
        """
        self._require_may_begin(changes=changes)
        if backend is not self._image.opened:
            raise Forbidden(DENIED)
        self.traffic.add_lane(lane, changes=changes)

    def start_lane(
        self, lane: Lane, backend: Backend, fd: int, rest: bytes, terms: Terms, tls: TlsSocket | None, *, changes: bool
    ) -> None:
        """Start a lane on the image of a backend; see Lane.start() and add_lane(). Raises what these do."""
        self.add_lane(lane, backend, changes=changes)  # before the start, so that a cancel reaches the lane
        try:
            lane.start(backend, fd, rest, terms, tls)
        except BaseException:
            self.remove_lane(lane)
            raise

    def remove_lane(self, lane: Lane) -> None:
        """Remove a lane that has ended. No effect if it was not added."""
        try:
            self.traffic.remove_lane(lane)
        finally:
            self._settle()

    # The image

    @property
    def opened(self) -> Backend | None:
        """Return the backend of the image if it is open, else None."""
        return self._image.opened

    @property
    def record(self) -> DurableRecord | None:
        """Return the record of durable ranges, if there is one. It is empty while the image is not open."""
        return self._image.record if self.ticket.may(Access.WRITE) and self._records.wanted else None

    async def backend(self) -> Backend:
        """Return the backend of the image; see TransferImage.backend(). Raises Canceled, Forbidden, StorageError."""
        return await self._image.backend(self.permission.require_not_canceled)

    def release_expired(self) -> None:
        """Close the image if the ticket has expired and no request runs, even if there are connections.

        NBD connections end. Other connections stay, and open the image again if the ticket is revived. If there are
        lanes, this call only ends them, and a later call closes the image. Returns at once.
        """
        if self._image.opened is None or not self.permission.expired:
            return
        if self.permission.canceled or self.running or self._image.on_its_way:
            return
        if not self.permission.expired:  # a request has ended since the first check, and renewed it
            return
        callbacks = self.connections.callbacks()
        if not self.traffic.any:
            self.covered = False
            self._image.release(wanted=lambda: self.permission.valid)
        for on_cancel in callbacks:
            on_cancel()

    # The end

    def cancel(self, *, goes_on: bool = False) -> None:
        """Refuse new requests, and make running ones end at their next step. Returns at once; see TransferEnd.

        Pass goes_on=True if the next process goes on with the transfer. Then an image with a record of durable ranges
        is flushed before it is closed.
        """
        if self.permission.canceled:
            return
        self._image.goes_on = goes_on
        self.permission.canceled = True
        running = self.traffic.all()
        callbacks = self.connections.callbacks()
        self.end.begin()
        self._image.stop_opening()
        for op in running:
            op.cancel()
        for on_cancel in callbacks:
            on_cancel()
        self._image.interrupt()

    def _operation_ended(self, op: Operation) -> None:
        self.traffic.end(op)
        self.permission.renew()
        self._settle()

    def _settle(self) -> None:
        """Check whether a cancelled transfer is quiet, or the last change before a verification has ended."""
        self.end.settle()
        self.permission.seal.settle()

    # Status

    def sample(self) -> None:
        """Take a sample for the rate of the status, and look for a pause. Call this at regular times."""
        self.traffic.sample(self.permission.lease.active)

    def totals(self) -> Totals:
        """Return the totals of this transfer so far."""
        return self.traffic.totals()._replace(limited=self.bucket.limited)

    def status(self) -> dict[str, Any]:
        """Return the ticket and its state, as the control service sends it; see transfer_status()."""
        record = self.record
        durable = None if record is None or self._image.opened is None else record.state().bytes
        return transfer_status(self.ticket, self.permission, self.traffic, self.connections, self.bucket, durable)
