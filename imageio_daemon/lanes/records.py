# SPDX-License-Identifier: Apache-2.0
"""Log lines of lanes: requests, and operations that failed or were slow.

C keeps records of slow requests, or of all requests if the level of the log includes them. Python reads the records at
intervals, so a lane does not wake a thread of Python. C counts the records for which it has no room.
"""

import asyncio
import itertools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import StorageError
from ..runtime import request_log
from ..runtime.request_activity import Wait
from ..storage.backend import Backend
from ..storage.completions import describe, kind_name, syscall_name, tell

log = logging.getLogger(__name__)

#: Seconds between two reads. C has room for 4,096 records, so for 200,000 requests a second.
PERIOD = 0.02
#: Seconds between two reads, and checks of the log's level, while it does not include all requests.
LOOK = 1.0
#: Most seconds that one read keeps the event loop busy, and the pause before the next read if records are left.
MOST = 0.01
#: Records that one call of C returns at most. Logging a line takes 45 us on a busy machine.
BATCH = 64

Describe = Callable[[Any], dict[str, object]]

#: The kinds of waits, by C's iou_wait.
WAITS = {
    int(lib.IOU_WAIT_PEER): Wait.CLIENT,
    int(lib.IOU_WAIT_LIMIT): Wait.LIMIT,
    int(lib.IOU_WAIT_STORAGE): Wait.STORAGE,
    int(lib.IOU_WAIT_TURN): Wait.TURN,
}


def waited(record: Any) -> dict[str, float]:
    """Return for how many seconds a request has waited, by kind of wait. Pass its iou_record."""
    return {name: record.waited[kind] / 1e9 for kind, name in WAITS.items()}


class _Known(NamedTuple):
    """A lane. Its log lines have the fields `names`, and then those that `describe` returns for a record."""

    names: Mapping[str, object]
    describe: Describe


class Records:
    """Log the requests of lanes."""

    def __init__(self, lanes: Any) -> None:
        self._lanes = lanes
        self._numbers = itertools.count(1)
        self._known: dict[int, _Known] = {}
        # Lanes that have ended, each with the number of records that C had written by then.
        self._ended: deque[tuple[int, int]] = deque()
        self._batch = ffi.new("iou_record[]", BATCH)
        self._lost = 0
        self.follow()

    def begin(self, names: Mapping[str, object], describe: Describe) -> int:
        """Return the number of a new lane for its records."""
        number = next(self._numbers)
        self._known[number] = _Known(names, describe)
        return number

    def end(self, number: int) -> None:
        """Forget a lane that has ended, as soon as its records are logged."""
        self._ended.append((number, self._stats().written))

    async def run(self) -> None:
        """Log the records of C, until the task is cancelled."""
        told_all = True
        while True:
            pause = PERIOD if self.follow() else LOOK
            await asyncio.sleep(pause if told_all else MOST)
            told_all = self.tell(MOST)

    def tell(self, seconds: float = math.inf) -> bool:
        """Log the records that C has, for at most this many seconds. Return whether all were logged."""
        until = time.monotonic() + seconds
        count = BATCH
        while count == BATCH:
            count = lib.iou_records_read(self._lanes, self._batch, BATCH)
            for record in self._batch[0:count]:
                known = self._known[record.lane]
                request_log.tell(record.elapsed / 1e9, waited(record), **known.names, **known.describe(record))
            if time.monotonic() >= until:
                break
        self._settle()
        return bool(count < BATCH)

    def follow(self) -> bool:
        """Make C record all requests if the log's level includes them, otherwise slow ones. Return whether it does."""
        wanted = request_log.wanted()
        lib.iou_records_want(self._lanes, 0 if wanted else int(request_log.SLOW * 1e9))
        return wanted

    def _settle(self) -> None:
        stats = self._stats()
        while self._ended and self._ended[0][1] <= stats.read:
            del self._known[self._ended.popleft()[0]]
        if stats.lost > self._lost:
            request_log.tell_lost(stats.lost - self._lost)
            self._lost = stats.lost

    def _stats(self) -> Any:
        stats = ffi.new("iou_records_stats *")
        lib.iou_records_get_stats(self._lanes, stats)
        return stats


class Reports:
    """Log operations that failed, were slow or gave up a method of zeroing.

    `lane` is the iou_lane of C. `failed` counts the operations that failed, by kind. Under "" it counts the operations
    whose reports were lost.
    """

    def __init__(self, lane: Any, image: Backend, failed: Counter[str]) -> None:
        self._lane = lane
        self._image = image
        self._failed = failed
        self._lost = 0  # number of lost reports that was logged

    def tell(self, lost: int) -> None:
        """Fetch and log the reports. C has dropped `lost` reports so far."""
        most = count = lib.IOU_LANE_REPORTS
        reports = ffi.new("iou_lane_report[]", most)
        while count == most:
            count = lib.iou_lane_reports(self._lane, reports, most)
            for report in reports[0:count]:
                self._tell(report)
        if lost > self._lost:
            self._failed[""] += lost - self._lost
            log.error("storage failed: %s: %d more times", self._image.name, lost - self._lost)
            self._lost = lost

    def _tell(self, report: Any) -> None:
        what = describe(report.kind, self._image.name, report.offset, report.length)
        if report.error:
            failure = self._image.explain(report) or StorageError(report.error, what, syscall_name(report.syscall))
            if isinstance(failure, StorageError):
                self._failed[kind_name(report.kind)] += 1
                log.error("storage failed: %s", failure)
        tell(what, self._image.name, report.elapsed, report.given_up)
