# SPDX-License-Identifier: Apache-2.0
"""The terms of a lane: what its ticket allows, and the options of its protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ioutil_ext import lib


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
