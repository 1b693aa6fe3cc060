# SPDX-License-Identifier: Apache-2.0
"""What a lane is told before it begins: what its ticket allows, and what its protocol needs besides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ioutil_ext import lib


def bits(flags: Mapping[int, bool]) -> int:
    """Return the flags that are wanted, in one number."""
    return sum(bit for bit, wanted in flags.items() if wanted)


@dataclass(frozen=True)
class Terms:
    """What a ticket allows. size: bytes of the image; timeout: seconds that the client may make no progress."""

    size: int
    timeout: float
    read_only: bool
    sparse: bool
    count_reads: bool
    count_writes: bool

    @property
    def flags(self) -> int:
        """Return the flags of C that are set."""
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
        """Start the lane; return 0 or a negative errno. common: the options that all lanes have; result: the lane."""
        raise NotImplementedError
