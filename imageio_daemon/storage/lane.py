# SPDX-License-Identifier: Apache-2.0
"""Connections that C serves: plain sockets, and images that are files or block devices.

Python decides, hands the socket over, and sees to the end. What a request may do, and how it is answered, is said
before; what was done is asked for. Each protocol has a module beside this one.
"""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ioutil_ext import ffi, lib

from ..errors import StorageError
from ..tlssocket import TlsSocket
from .base import Backend, Lease, Operation, ZeroMethod
from .completions import METHODS, describe, syscall_name, tell
from .engine import Engine
from .file import FileBackend

log = logging.getLogger(__name__)

#: What lanes can work with, in bytes.
MIN_LANE_MEMORY: int = lib.IOU_LANES_MIN_MEMORY
#: 24 days: what poll(2) can wait.
MAX_TIMEOUT_MS = 2**31 - 1
#: Connections at a time: each has a thread at least.
MAX_LANES = 256


@dataclass(frozen=True)
class Terms:
    """What a ticket allows, and its connection. size in bytes, timeout in seconds."""

    size: int
    timeout: float
    read_only: bool
    sparse: bool
    count_reads: bool
    count_writes: bool

    @property
    def flags(self) -> int:
        """Return what of it C has as flags."""
        flags = {
            lib.IOU_LANE_READ_ONLY: self.read_only,
            lib.IOU_LANE_SPARSE: self.sparse,
            lib.IOU_LANE_COUNT_READS: self.count_reads,
            lib.IOU_LANE_COUNT_WRITES: self.count_writes,
        }
        return bits(flags)

    @property
    def timeout_ms(self) -> int:
        """Return the timeout as C has it."""
        return min(max(1, int(self.timeout * 1000)), MAX_TIMEOUT_MS)

    def start(self, lanes: Any, handle: Any, common: Any, result: Any) -> int:
        """Start the lane. common: the options that all lanes have, filled in. Returns what C does."""
        raise NotImplementedError


AnyLane = TypeVar("AnyLane", bound="Lane")


def bits(flags: Mapping[int, bool]) -> int:
    """Return the flags that are wanted."""
    return sum(bit for bit, wanted in flags.items() if wanted)


class Lanes:
    """Memory that all lanes share. memory: bytes, at least MIN_LANE_MEMORY."""

    def __init__(self, engine: Engine, memory: int) -> None:
        self._lanes = engine.new_lanes(memory)
        self._alive: set[Lane] = set()  # C uses what they own

    def make(self, lease: Lease, kind: "type[AnyLane]") -> "AnyLane":
        """Return a lane that has not begun."""
        return kind(self._lanes, self._alive, lease)

    def takes(self, backend: Backend, *data: bytes) -> bool:
        """Tell whether another connection, to this image, can be served by a lane.

        data: what was received of the client and, in another piece, what it is still to be sent.
        """
        if any(len(piece) > lib.IOU_LANE_MAX_STAGED for piece in data) or len(self._alive) >= MAX_LANES:
            return False
        return isinstance(backend, FileBackend)

    def free(self) -> None:
        """Give the memory back, unless lanes are left: storage hangs, or their loop stopped before they had ended."""
        if lib.iou_lanes_free(self._lanes):
            log.warning("%d connections are left", len(self._alive))


class Lane:
    """One connection. Lives on one loop; what is asked may be asked in any thread."""

    def __init__(self, lanes: Any, alive: "set[Lane]", lease: Lease) -> None:
        self._lanes = lanes
        self._alive = alive
        self._lease = lease
        self._path = ""
        self._operation = Operation()  # of which C shares the control with all requests
        self._loop = asyncio.get_running_loop()
        # Who knows the lane by its transfer may ask about it while its loop frees it, and without the GIL.
        self._lock = threading.Lock()
        self._lane: Any = ffi.NULL
        self._tls: TlsSocket | None = None  # C uses it
        self._stats = ffi.new("iou_lane_stats *")
        self._lost = 0  # reports that were told to be lost
        self._on_event: Callable[[], None] = _nothing
        self._on_end: Callable[[], None] = _nothing

    def start(self, backend: Backend, fd: int, rest: bytes, terms: Terms, tls: TlsSocket | None = None) -> None:
        """Serve the socket fd, which is the lane's when this succeeds.

        backend: one that Lanes.takes(). rest: what was received already. tls: of the connection; until the lane has
        ended nobody else uses it. Raises StorageError, Canceled.
        """
        if not isinstance(backend, FileBackend):
            raise TypeError("no lane for this image")
        self._path = backend.path
        common = {
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
        with backend.lent_handle() as handle:
            code = terms.start(self._lanes, handle, common, result)
        if code:
            raise StorageError(-code, self._path, "serve")
        self._lane = result[0]
        self._tls = tls
        self._alive.add(self)

    def watch(self, on_event: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Call back when there is something to fetch, and at the end."""
        self._on_event, self._on_end = on_event, on_end
        self._loop.add_reader(lib.iou_lane_fd(self._lane), self._look)

    # Its end

    def refuse(self) -> None:
        """Refuse requests, and end when none runs. The cancelled ones end at their next step."""
        with self._lock:
            if self._lane:
                lib.iou_lane_refuse(self._lane)

    def cancel(self) -> None:
        """Make requests that run end at their next step."""
        self._operation.cancel()

    def abort(self) -> None:
        """Close the connection now."""
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
        """Look again. Called with the lock."""
        self._stats = ffi.new("iou_lane_stats *")
        lib.iou_lane_get_stats(self._lane, self._stats)

    @property
    def running(self) -> int:
        """Return how many operations are in storage."""
        return int(self.stats.running)

    @property
    def storage_wait(self) -> float:
        """Return for how many seconds storage has owed an answer."""
        return float(self.stats.storage_wait / 1e9)

    @property
    def done(self) -> int:
        """Return the bytes moved so far."""
        return self._operation.done

    @property
    def zeroed(self) -> dict[ZeroMethod, int]:
        """Return the bytes that were zeroed, by how."""
        zeroed = self.stats.zeroed
        return {METHODS[method]: zeroed[method] for method in METHODS if zeroed[method]}

    def counted(self) -> list[tuple[int, int]]:
        """Return the ranges that count as transferred since the last call."""
        with self._lock:
            if not self._lane:
                return []
            self._fetch_stats()
            most = self._stats.ranges  # what comes meanwhile is for the next call
            ranges = ffi.new("iou_range[]", most)
            count = lib.iou_lane_counted(self._lane, ranges, most)
            return [(r.start, r.end) for r in ranges[0:count]]

    # Events

    def _look(self) -> None:
        ended = self.stats.ended  # first: what was told before the end is still fetched
        try:
            self._tell_reports()
            self._on_event()
        finally:
            if ended:  # it is told once
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
            log.error("storage failed: %s: %d more times", self._path, lost - self._lost)
            self._lost = lost

    def _tell(self, report: Any) -> None:
        what = describe(report.kind, self._path, report.offset, report.length)
        if report.error:
            log.error("storage failed: %s", StorageError(report.error, what, syscall_name(report.syscall)))
        tell(what, self._path, report.elapsed, report.given_up)

    def _end(self) -> None:
        self._loop.remove_reader(lib.iou_lane_fd(self._lane))
        try:
            self._on_end()
        finally:
            self._free()

    def _free(self) -> None:
        with self._lock:
            self._fetch_stats()  # the last ones
            lib.iou_lane_free(self._lane)
            self._lane = ffi.NULL
            self._tls = None
        self._on_event = self._on_end = _nothing  # they refer to us
        self._alive.discard(self)


def _nothing() -> None:
    pass


def error_of(stats: Any) -> str | None:
    """Return why a lane ended, if that was no goodbye."""
    return errno.errorcode.get(stats.error)
