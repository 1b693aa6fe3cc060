# SPDX-License-Identifier: Apache-2.0
"""Lanes: connections that C serves, with images on any kind of storage.

Python sets the terms: what requests may do, and how they are answered. Then it hands the socket over to C. Later it
fetches counters and reports, and frees the lane after its end. The modules `http` and `nbd` have the protocols.
"""

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import StorageError, Unavailable
from ..net.tls_socket import TlsSocket
from ..runtime.background import tell_lack
from ..runtime.request_activity import Doing
from ..runtime.sums import By, Count
from ..storage.backend import Backend
from ..storage.bucket import Bucket
from ..storage.completions import METHODS, kind_name
from ..storage.lease import Lease
from ..storage.operation import Operation, Totals, WaitingOperation, ZeroMethod
from .records import WAITS, Reports
from .shared import Lanes

#: What a start fails with for lack of a thread, memory or descriptors. The storage has no part in it.
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def bits(flags: Mapping[int, bool]) -> int:
    """Return the sum of the flags whose value is true."""
    return sum(bit for bit, wanted in flags.items() if wanted)


@dataclass(frozen=True)
class Terms:
    """What a ticket allows.

    `size` is the size of the ticket, in bytes. A client without progress is disconnected after `timeout` seconds. With
    `sparse`, zeroing may deallocate. `count_reads` and `count_writes` tell which bytes are progress of the transfer.
    """

    size: int
    timeout: float
    read_only: bool
    sparse: bool
    count_reads: bool
    count_writes: bool

    @property
    def flags(self) -> int:
        """Return the iou_lane_flag bits of these terms."""
        flags = {
            lib.IOU_LANE_READ_ONLY: self.read_only,
            lib.IOU_LANE_SPARSE: self.sparse,
            lib.IOU_LANE_COUNT_READS: self.count_reads,
            lib.IOU_LANE_COUNT_WRITES: self.count_writes,
        }
        return bits(flags)

    @property
    def timeout_ms(self) -> int:
        """Return the timeout in milliseconds, at most IOU_LANE_MAX_TIMEOUT_MS."""
        return min(max(1, int(self.timeout * 1000)), int(lib.IOU_LANE_MAX_TIMEOUT_MS))

    def start(self, lanes: Any, handle: Any, common: Any, result: Any) -> int:
        """Start a lane of C, with `common` options, and put it into `result`. Return 0 or a negative errno."""
        raise NotImplementedError


class Lane:
    """A connection that C serves. Use it on the event loop, except `stats`, which a thread of Liveness reads, too.

    The bucket limits its rate. Its requests and bytes count for `service`. Its log lines begin with the fields `names`.
    """

    def __init__(self, lanes: Lanes, lease: Lease, bucket: Bucket, service: str, **names: object) -> None:
        self._lanes = lanes
        self._lease = lease  # kept alive while C uses it, as the bucket
        self._bucket = bucket
        self._service = service
        self._names = names
        self._number = 0  # of this lane, in records
        self._operation = Operation()  # its control is shared by all requests of the lane
        self._loop = asyncio.get_running_loop()
        # The thread of Liveness may read `stats` while the loop frees the lane, because C releases the GIL.
        self._lock = threading.Lock()
        self._lane: Any = ffi.NULL
        self._tls: TlsSocket | None = None  # kept alive while C uses it
        self._stats = ffi.new("iou_lane_stats *")
        self._failed: Counter[str] = Counter()  # operations that storage has failed, by kind
        self._on_event: Callable[[], None] = _nothing
        self._on_end: Callable[[], None] = _nothing

    def start(self, backend: Backend, fd: int, rest: bytes, terms: Terms, tls: TlsSocket | None = None) -> None:
        """Serve the socket of this descriptor. The lane gets a copy of the descriptor.

        `rest` has the bytes that were received already, at most MAX_STAGED. If the connection has TLS, pass it as
        `tls`. Only the lane uses it until its end. Raises Unavailable if there is no thread, memory or descriptor for
        the lane, StorageError if C cannot start it, Canceled if the image is closed, and OSError.
        """
        self._number = self._lanes.records.begin(self._names, self.describe)
        copy = -1
        try:
            copy = os.dup(fd)
            self._lane = self._begin(backend, copy, rest, terms, tls)
        except BaseException:
            if copy != -1:
                os.close(copy)
            self._lanes.records.end(self._number)
            raise
        self._image = backend
        self._reports = Reports(self._lane, backend, self._failed)
        self._tls = tls
        self._lanes.alive.add(self)
        self._lanes.served.begin((self._service, By.LANE), self)

    def _begin(self, backend: Backend, fd: int, rest: bytes, terms: Terms, tls: TlsSocket | None) -> Any:
        """Start and return the iou_lane of C. Raises Unavailable, StorageError, Canceled."""
        common = {
            "number": self._number,
            "fd": fd,
            "tls": ffi.NULL if tls is None else tls.tls,
            "flags": terms.flags,
            "size": terms.size,
            "timeout_ms": terms.timeout_ms,
            "rest": ffi.from_buffer(rest),
            "rest_length": len(rest),
            "control": self._operation.control,
            "lease": self._lease.shared,
            "bucket": self._bucket.shared,
        }
        result = ffi.new("iou_lane **")
        with backend.lane_handle() as handle:
            code = terms.start(self._lanes.shared, handle, common, result)
        if -code in _NO_ROOM:
            tell_lack(f"start of a lane: {os.strerror(-code)}")
            raise Unavailable(f"There is no lane for the request now: {os.strerror(-code)}")
        if code:
            raise StorageError(-code, backend.name, "serve")
        return result[0]

    def watch(self, on_event: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Call `on_event` when there are counts to fetch, and `on_end` once, between the lane's end and its release."""
        self._on_event, self._on_end = on_event, on_end
        self._loop.add_reader(lib.iou_lane_fd(self._lane), self._look)

    # The end of the lane

    def refuse(self) -> None:
        """Begin no more requests, and end when none runs."""
        with self._lock:
            if self._lane:
                lib.iou_lane_refuse(self._lane)

    def leave(self) -> None:
        """Read no more requests, and end when all that have begun are answered. Others get no answer. For NBD."""
        with self._lock:
            if self._lane:
                lib.iou_lane_leave(self._lane)

    def cancel(self) -> None:
        """Cancel the requests that run. They end at their next step."""
        self._operation.cancel()

    def abort(self) -> None:
        """Close the connection now. The lane ends when the operations in storage have ended by themselves."""
        with self._lock:
            if self._lane:
                lib.iou_lane_abort(self._lane)

    # Counters and running requests

    @property
    def stats(self) -> Any:
        """Return the counters, an iou_lane_stats. After the lane's end they are the final ones."""
        with self._lock:
            if self._lane:
                self._fetch_stats()
            return self._stats

    def _fetch_stats(self) -> None:
        """Fetch the counters. Call this with the lock held."""
        self._stats = ffi.new("iou_lane_stats *")
        lib.iou_lane_get_stats(self._lane, self._stats)

    @property
    def running(self) -> int:
        """Return how many operations run in storage, or 1 if a request runs without any."""
        return int(self.stats.running)

    @property
    def storage_wait(self) -> float:
        """Return the seconds for which an operation has waited for storage, or for earlier operations."""
        return float(self.stats.storage_wait / 1e9)

    @property
    def waiting(self) -> WaitingOperation | None:
        """Return the operation that has run longest in storage, with the seconds since its start, or None."""
        record = ffi.new("iou_running *")
        with self._lock:
            if not self._lane or lib.iou_lane_slowest(self._lane, record) != 1:
                return None
        return WaitingOperation(record.elapsed / 1e9, kind_name(record.kind), record.offset, record.length)

    def doing(self) -> Doing | None:
        """Return the request that has run longest, or None if no request runs."""
        record = ffi.new("iou_record *")
        with self._lock:
            if not self._lane or lib.iou_lane_oldest(self._lane, record) != 1:
                return None
        waits_for = WAITS.get(record.result, "")
        return Doing(self.operation(record), record.offset, record.length, record.elapsed / 1e9, waits_for)

    @staticmethod
    def operation(record: Any) -> str:
        """Return the name of the operation of a request, given its iou_record."""
        raise NotImplementedError

    @property
    def done(self) -> int:
        """Return the number of bytes done so far, including zeroed ones."""
        return self._operation.done

    def served(self) -> Count:
        """Return the requests and bytes so far, without `rest` of start(): Python has received and counted that."""
        stats = self.stats
        return Count(stats.requests, stats.received, stats.sent, failed=int(stats.failed))

    def totals(self) -> Totals:
        """Return what the operations that have ended did in storage, and how many failures were reported."""
        stats = self.stats
        zeroed: Counter[ZeroMethod] = Counter()
        for method in METHODS:
            if stats.zeroed[method]:
                zeroed[METHODS[method]] = stats.zeroed[method]
        return Totals(stats.read, stats.written, zeroed, self._failed.copy())

    def counted(self) -> list[tuple[int, int]]:
        """Return the (start, end) ranges that were transferred since the last call; none after the lane's end."""
        with self._lock:
            if not self._lane:
                return []
            self._fetch_stats()
            most = self._stats.ranges  # C may add more now, which the next call returns
            ranges = ffi.new("iou_range[]", most)
            count = lib.iou_lane_counted(self._lane, ranges, most)
            return [(r.start, r.end) for r in ranges[0:count]]

    @staticmethod
    def describe(record: Any) -> dict[str, object]:
        """Return the fields of a request's log line, given its iou_record."""
        raise NotImplementedError

    # Events

    def _look(self) -> None:
        self._reports.tell(self.stats.reports_lost)  # first: this clears the eventfd, and later events set it again
        ended = self.stats.ended
        try:
            self._on_event()
        finally:
            if ended:  # no event follows
                self._reports.tell(self.stats.reports_lost)  # reports from before the end
                self._end()

    def _end(self) -> None:
        self._loop.remove_reader(lib.iou_lane_fd(self._lane))
        try:
            self._on_end()
        finally:
            self._free()

    def _free(self) -> None:
        self._lanes.records.end(self._number)  # first: the records may be freed after the last lane
        with self._lock:
            self._fetch_stats()  # the final counters
            lib.iou_lane_free(self._lane)
            self._lane = ffi.NULL
            self._tls = None
        self._lanes.served.end(self)
        self._on_event = self._on_end = _nothing  # break the reference cycle: they refer to this lane
        self._lanes.alive.discard(self)


def _nothing() -> None:
    pass


def error_of(stats: Any) -> str | None:
    """Return the name of the errno with which a lane ended, or None if it ended in order."""
    return errno.errorcode.get(stats.error)
