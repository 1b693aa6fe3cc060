# SPDX-License-Identifier: Apache-2.0
"""What all lanes share: memory, limits, records and counters."""

from functools import partial
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import TooManyConnections
from ..runtime.sums import Served
from ..storage.engine import Engine
from .places import Places
from .records import Records

#: The least memory of all lanes together, in bytes.
MIN_LANE_MEMORY: int = lib.IOU_LANES_MIN_MEMORY
#: Most bytes that a lane takes over with its connection: those received already, and the same for those to be sent.
MAX_STAGED: int = lib.IOU_LANE_MAX_STAGED
#: Most lanes at a time of HTTP, whose connections come and go, and of each other protocol. Each has a thread or more.
HTTP_LANES = 1024
MAX_LANES = 256


class LaneMemory(NamedTuple):
    """The memory for data of all lanes, in bytes, and how many tickets wait for some."""

    limit: int
    used: int
    waiting: int


class Lanes:
    """The memory, limits and counters that all lanes share.

    `memory` is in bytes, at least MIN_LANE_MEMORY. `served` counts requests and bytes by service.
    """

    def __init__(self, engine: Engine, memory: int, served: Served | None = None) -> None:
        self.shared = engine.new_lanes(memory)
        self.served = served or Served()
        #: The records of requests, for the log.
        self.records = Records(self.shared)
        self.alive: set[Any] = set()  # keeps lanes alive until they have ended: C uses memory that they own
        #: The places of HTTP connections.
        self.places = Places(HTTP_LANES, partial(lib.iou_lanes_recall, self.shared))

    def require_room(self, kind: type[Any]) -> None:
        """Raise TooManyConnections if there are MAX_LANES lanes of this kind."""
        if sum(type(lane) is kind for lane in self.alive) >= MAX_LANES:
            raise TooManyConnections(f"Too many connections, the limit is {MAX_LANES}")

    def memory(self) -> LaneMemory:
        """Return the memory of lanes as it is now."""
        stats = ffi.new("iou_lanes_stats *")
        lib.iou_lanes_get_stats(self.shared, stats)
        return LaneMemory(int(stats.limit), int(stats.used), int(stats.waiting))

    def look(self) -> None:
        """Take each lock of the lanes' threads once. Blocks, and never returns if a thread holds a lock for ever."""
        for lane in tuple(self.alive):
            _ = lane.stats
        self.memory()
