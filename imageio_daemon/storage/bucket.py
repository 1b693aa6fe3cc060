# SPDX-License-Identifier: Apache-2.0
"""The limit on the rate of a ticket, in a bucket that Python and C share."""

import asyncio
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import InvalidRequest
from ..runtime.request_activity import Wait, waiting
from ..units import KiB

#: Bytes that a request without data takes: a zero, a list of extents.
SMALL: int = lib.IOU_BUCKET_SMALL
#: Most seconds after which a request that waits looks whether the rate is another one. Lanes do so, too.
LOOK = 0.25
#: Pieces of data are those of this part of a second at most, and have at least so many bytes.
PIECES_PER_SECOND = 8
LEAST_PIECE = 64 * KiB


class Bucket:
    """Limit the rate of all that takes from it, and of it together with the other children of its parent.

    parent: its rate holds for all of its children together. `shared` is the iou_bucket of C, whose lanes take from it
    without Python. What is taken goes in the order of calls.
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
        """Return the rate, in bytes per second, without that of the parent; 0: there is none."""
        return self._rate

    @rate.setter
    def rate(self, rate: int) -> None:
        """Set the rate, which counts at once, also for what waits. Raises InvalidRequest if it is above MAX_RATE."""
        if lib.iou_bucket_set(self.shared, rate):
            raise InvalidRequest(f"No rate: {rate}")
        self._rate = rate

    @property
    def limited(self) -> float:
        """Return the seconds in which something has waited so far."""
        return float(self._stats().limited / 1e9)

    @property
    def waiting(self) -> int:
        """Return how many requests and lanes wait now."""
        return int(self._stats().waiting)

    def piece(self, most: int) -> int:
        """Return most bytes that a piece of data should have: at most `most`, and fewer if the rate is low."""
        rate = int(self._stats().rate)
        return min(most, max(LEAST_PIECE, rate // PIECES_PER_SECOND // LEAST_PIECE * LEAST_PIECE)) if rate else most

    async def take(self, count: int) -> None:
        """Take bytes, and wait until they may be moved. If the task is cancelled meanwhile, they are given back."""
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
        """Give back bytes that were taken, and not moved."""
        lib.iou_bucket_give_back(self.shared, count)

    def _stats(self) -> Any:
        stats = ffi.new("iou_bucket_stats *")
        lib.iou_bucket_get_stats(self.shared, stats)
        return stats
