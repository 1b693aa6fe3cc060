# SPDX-License-Identifier: Apache-2.0
"""The reports of a lane on its operations, for the log."""

import logging
from collections import Counter
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import StorageError
from ..storage.completions import describe, kind_name, syscall_name, tell
from ..storage.file.engine_image import EngineImage

log = logging.getLogger(__name__)


class Reports:
    """Log operations that failed, were slow or gave up a method of zeroing.

    `lane` is the iou_lane of C. `failed` counts the operations that failed, by kind. Under "" it counts the operations
    whose reports were lost.
    """

    def __init__(self, lane: Any, image: EngineImage, failed: Counter[str]) -> None:
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
