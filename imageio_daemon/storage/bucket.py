# SPDX-License-Identifier: Apache-2.0
"""The limit on the rate of a ticket, in a bucket that Python and C share."""

import asyncio
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import InvalidRequest
from ..runtime.request_activity import Wait, waiting
from ..units import KiB

#: Bytes that a request without data takes from a bucket, such as a zero or a list of extents.
SMALL: int = lib.IOU_BUCKET_SMALL
#: Most seconds until a waiting request finds out that the rate has changed. Lanes have the same.
LOOK = 0.25
#: A piece of data has at most the bytes of 1/PIECES_PER_SECOND s, but LEAST_PIECE bytes in any case.
PIECES_PER_SECOND = 8
LEAST_PIECE = 64 * KiB


class Bucket:
    """Limit the rate of everything that takes bytes from this bucket. The first to take is the first to move bytes.

    The rate of the `parent` is for all of its children together. `shared` is the iou_bucket of C, from which lanes take
    without Python.
    """

    def __init__(self, rate: int = 0, parent: "Bucket | None" = None) -> None:
        self._parent = parent  # lives as long as this one
        self.shared: Any
        bucket = lib.iou_bucket_new(ffi.NULL if parent is None else parent.shared)
        if bucket == ffi.NULL:
            raise MemoryError
        self.shared = ffi.gc(bucket, lib.iou_bucket_free)
        self._rate = 0
        self.rate = rate

    @property
    def rate(self) -> int:
        """Return the rate, in bytes per second, without that of the parent. 0 is no limit."""
        return self._rate

    @rate.setter
    def rate(self, rate: int) -> None:
        """Set the rate, at once also for requests that wait. Raises InvalidRequest if it is above MAX_RATE."""
        if lib.iou_bucket_set(self.shared, rate):
            raise InvalidRequest(f"Invalid rate: {rate}")
        self._rate = rate

    @property
    def limited(self) -> float:
        """Return the seconds so far in which anything has waited."""
        return float(self._stats().limited / 1e9)

    @property
    def waiting(self) -> int:
        """Return how many requests and lanes wait now."""
        return int(self._stats().waiting)

    def piece(self, most: int) -> int:
        """Return how many bytes a piece of data should have: `most`, or fewer if the rate is low."""
        rate = int(self._stats().rate)
        return min(most, max(LEAST_PIECE, rate // PIECES_PER_SECOND // LEAST_PIECE * LEAST_PIECE)) if rate else most

    async def take(self, count: int) -> None:
        """Take bytes, and wait until they may be moved. A task that is cancelled in this wait gives them back."""
        due = ffi.new("iou_due *")
        left = lib.iou_bucket_take(self.shared, count, due)
        if not left:
            return
        try:
            with waiting(Wait.LIMIT):
                while left:
                    await asyncio.sleep(min(left / 1e9, LOOK))
                    left = lib.iou_bucket_left(self.shared, due)
        except asyncio.CancelledError:
            self.give_back(count)
            raise
        finally:
            lib.iou_bucket_waited(self.shared)

    def give_back(self, count: int) -> None:
        """Give back bytes that were taken and not moved."""
        lib.iou_bucket_give_back(self.shared, count)

    def _stats(self) -> Any:
        stats = ffi.new("iou_bucket_stats *")
        lib.iou_bucket_get_stats(self.shared, stats)
        return stats
