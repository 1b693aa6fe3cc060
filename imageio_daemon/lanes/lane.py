# SPDX-License-Identifier: Apache-2.0
"""Lanes: connections that C serves, whatever storage has their image.

Python decides what requests may do and how they are answered, then hands the socket over; it asks for what was done,
and frees the lane after its end. Each protocol has a module beside this one.
"""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ioutil_ext import ffi, lib

from ..errors import Error, StorageError, TooManyConnections
from ..net.tls_socket import TlsSocket
from ..service.served import By, Count, Served
from ..storage.backend import Backend, Lease, Operation, ZeroMethod
from ..storage.completions import METHODS, describe, syscall_name, tell
from ..storage.file.engine import Engine
from .image import LaneImage
from .places import Places
from .records import Records
from .terms import Terms

log = logging.getLogger(__name__)

#: Least memory of all lanes together, in bytes.
MIN_LANE_MEMORY: int = lib.IOU_LANES_MIN_MEMORY
#: Most bytes that a lane takes with its connection: received from the client, or still to be sent to it.
MAX_STAGED: int = lib.IOU_LANE_MAX_STAGED
#: Most connections at a time of HTTP, which come and go, and of each other protocol: each has one thread or more.
HTTP_LANES = 1024
MAX_LANES = 256


AnyLane = TypeVar("AnyLane", bound="Lane")


class Lanes:
    """What all lanes share. memory: bytes, at least MIN_LANE_MEMORY. served: counts what they serve."""

    def __init__(self, engine: Engine, memory: int, served: Served | None = None) -> None:
        self.shared = engine.new_lanes(memory)
        self.served = served or Served()
        #: Of requests, for the log.
        self.records = Records(self.shared)
        self.alive: set[Lane] = set()  # referred to until they end: C uses memory that they own
        #: Of connections of HTTP.
        self.places = Places(HTTP_LANES, self._recall)

    def make(self, lease: Lease, kind: "type[AnyLane]", service: str, **names: object) -> "AnyLane":
        """Return a lane that has not begun. service: the connection's, for counts; names: fields of its log lines."""
        return kind(self, lease, service, names)

    def require_room(self, kind: "type[Lane]") -> None:
        """Raise TooManyConnections if no other connection of this kind can be served."""
        if self._count(kind) >= MAX_LANES:
            raise TooManyConnections(f"Too many connections, the limit is {MAX_LANES}")

    def takes(self, backend: Backend, data: bytes) -> bool:
        """Tell whether a lane can serve a connection to this image, of which these bytes were received."""
        return len(data) <= MAX_STAGED and isinstance(backend, LaneImage)

    def _count(self, kind: "type[Lane]") -> int:
        return sum(type(lane) is kind for lane in tuple(self.alive))  # other loops change it meanwhile

    def _recall(self, more: int) -> None:
        lib.iou_lanes_recall(self.shared, more)

    def free(self) -> None:
        """Free the memory, unless lanes are left: storage hangs, or their loop stopped before they had ended."""
        if lib.iou_lanes_free(self.shared):
            log.warning("%d connections are left", len(self.alive))


class Lane:
    """One connection. Its callbacks run on one loop; the other methods may be called in any thread."""

    def __init__(self, lanes: Lanes, lease: Lease, service: str, names: Mapping[str, object]) -> None:
        self._lanes = lanes
        self._lease = lease
        self._service = service
        self._names = names
        self._number = 0  # by which records name it
        self._image: LaneImage | None = None
        self._operation = Operation()  # of which C shares the control with all requests
        self._loop = asyncio.get_running_loop()
        # The transfer may ask in another thread while the loop frees the lane; C releases the GIL meanwhile.
        self._lock = threading.Lock()
        self._lane: Any = ffi.NULL
        self._tls: TlsSocket | None = None  # referred to while C uses it
        self._stats = ffi.new("iou_lane_stats *")
        self._lost = 0  # reports of failures that found no room and were logged as a number
        self._on_event: Callable[[], None] = _nothing
        self._on_end: Callable[[], None] = _nothing

    def start(self, backend: Backend, fd: int, rest: bytes, terms: Terms, tls: TlsSocket | None = None) -> None:
        """Serve the socket fd, which belongs to the lane once this has returned.

        backend: one that Lanes.takes(). rest: bytes that were received already. tls: of the connection; nobody else
        uses it until the lane has ended. Raises StorageError; Canceled: the image was closed.
        """
        if not isinstance(backend, LaneImage):
            raise TypeError("no lane for this image")
        self._image = backend
        self._number = self._lanes.records.begin(self._names, self.describe)
        try:
            self._lane = self._begin(backend, fd, rest, terms, tls)
        except BaseException:
            self._lanes.records.end(self._number)
            raise
        self._tls = tls
        self._lanes.alive.add(self)
        self._lanes.served.begin(self._service, By.LANE, self)

    def _begin(self, backend: LaneImage, fd: int, rest: bytes, terms: Terms, tls: TlsSocket | None) -> Any:
        """Return C's lane. Raises StorageError."""
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
        }
        result = ffi.new("iou_lane **")
        with backend.lane_handle() as handle:
            code = terms.start(self._lanes.shared, handle, common, result)
        if code:
            raise StorageError(-code, backend.name, "serve")
        return result[0]

    def watch(self, on_event: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Call on_event when there are counts or reports to fetch, and on_end once, before the lane is freed."""
        self._on_event, self._on_end = on_event, on_end
        self._loop.add_reader(lib.iou_lane_fd(self._lane), self._look)

    # Its end

    def refuse(self) -> None:
        """Take no more requests, and end when none runs."""
        with self._lock:
            if self._lane:
                lib.iou_lane_refuse(self._lane)

    def cancel(self) -> None:
        """Cancel requests that run: they end at their next step."""
        self._operation.cancel()

    def abort(self) -> None:
        """Close the connection now. Operations that run in storage end there, and the lane after them."""
        with self._lock:
            if self._lane:
                lib.iou_lane_abort(self._lane)

    # What it did

    @property
    def stats(self) -> Any:
        """Return the counters as they are now; after the end, as they were then."""
        with self._lock:
            if self._lane:
                self._fetch_stats()
            return self._stats

    def _fetch_stats(self) -> None:
        """Fetch the counters. The lock is held."""
        self._stats = ffi.new("iou_lane_stats *")
        lib.iou_lane_get_stats(self._lane, self._stats)

    @property
    def running(self) -> int:
        """Return how many operations storage has not completed."""
        return int(self.stats.running)

    @property
    def storage_wait(self) -> float:
        """Return for how many seconds storage has not answered."""
        return float(self.stats.storage_wait / 1e9)

    @property
    def done(self) -> int:
        """Return the bytes moved so far."""
        return self._operation.done

    def served(self) -> Count:
        """Return what was served so far, without the bytes that came with the connection: Python received them."""
        stats = self.stats
        return Count(stats.requests, stats.received, stats.sent)

    @property
    def zeroed(self) -> dict[ZeroMethod, int]:
        """Return the bytes that were zeroed, by method."""
        zeroed = self.stats.zeroed
        return {METHODS[method]: zeroed[method] for method in METHODS if zeroed[method]}

    def counted(self) -> list[tuple[int, int]]:
        """Return the ranges, (start, end) in bytes, that were transferred since the last call."""
        with self._lock:
            if not self._lane:
                return []
            self._fetch_stats()
            most = self._stats.ranges  # what comes meanwhile is for the next call
            ranges = ffi.new("iou_range[]", most)
            count = lib.iou_lane_counted(self._lane, ranges, most)
            return [(r.start, r.end) for r in ranges[0:count]]

    @staticmethod
    def describe(record: Any) -> dict[str, object]:
        """Return what the log says of a request."""
        raise NotImplementedError

    # Events

    def _look(self) -> None:
        self._tell_reports()  # first: it clears the event, which is set again by whatever happens after this
        ended = self.stats.ended
        try:
            self._on_event()
        finally:
            if ended:  # no event comes after it
                self._tell_reports()  # what was reported in between
                self._end()

    def _tell_reports(self) -> None:
        most = count = lib.IOU_LANE_REPORTS
        reports = ffi.new("iou_lane_report[]", most)
        while count == most:
            count = lib.iou_lane_reports(self._lane, reports, most)
            for report in reports[0:count]:
                self._tell(report)
        lost = self.stats.reports_lost
        if lost > self._lost:
            log.error("storage failed: %s: %d more times", self._name, lost - self._lost)
            self._lost = lost

    def _tell(self, report: Any) -> None:
        what = describe(report.kind, self._name, report.offset, report.length)
        if report.error:
            failure = self._take_failure()
            # The failure may be that of an earlier request, which C did not report: one that could not be fast.
            if failure is None or (not isinstance(failure, StorageError) and report.syscall == lib.IOU_SYS_EXTERNAL):
                failure = StorageError(report.error, what, syscall_name(report.syscall))
            if isinstance(failure, StorageError):
                log.error("storage failed: %s", failure)
        tell(what, self._name, report.elapsed, report.given_up)

    @property
    def _name(self) -> str:
        return "" if self._image is None else self._image.name

    def _take_failure(self) -> Error | None:
        """Return why a request failed, if that is not for C to tell."""
        return None if self._image is None else self._image.take_failure(self._operation.control)

    def _end(self) -> None:
        self._loop.remove_reader(lib.iou_lane_fd(self._lane))
        try:
            self._on_end()
        finally:
            self._free()

    def _free(self) -> None:
        self._lanes.records.end(self._number)  # first: when the last lane is freed, the records may be, too
        with self._lock:
            self._fetch_stats()  # the last ones
            lib.iou_lane_free(self._lane)
            self._lane = ffi.NULL
            self._tls = None
        self._lanes.served.end(self)
        self._take_failure()  # or the image would keep it
        self._on_event = self._on_end = _nothing  # they refer to this lane: no circle is left to the collector
        self._lanes.alive.discard(self)


def _nothing() -> None:
    pass


def error_of(stats: Any) -> str | None:
    """Return the name of the errno that a lane ended with; None: it ended in order."""
    return errno.errorcode.get(stats.error)
