# SPDX-License-Identifier: Apache-2.0
"""What all lanes share: memory, limits, records and counters, and the places of connections, for which some wait."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import TooManyConnections
from ..runtime.sums import Served
from ..storage.engine import Engine
from .records import Records


@dataclass(eq=False)
class WaitingConnection:
    """A connection that waits for a place. Places calls `granted` once, when the connection gets the place."""

    owner: Hashable
    granted: Callable[[], object]


class Places:
    """Give out places, never more than `most`.

    The owner of a connection is its transfer. An owner without a place may take the last one. Others need the consent
    of iou_may_have(), which always leaves some places for new owners. Owners that wait take turns. Places calls
    recall(1) when one more connection waits, and recall(0) when the queue is empty again.
    """

    def __init__(self, most: int, recall: Callable[[int], object]) -> None:
        self.most = most
        #: How many places are taken.
        self.taken = 0
        self._recall = recall
        self._taken_by: Counter[Hashable] = Counter()
        #: In the order of turns; no empty queues.
        self._waiting: OrderedDict[Hashable, deque[WaitingConnection]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Return how many connections wait for a place."""
        return sum(map(len, self._waiting.values()))

    def enter(self, owner: Hashable) -> bool:
        """Take a place if the owner may have one and no connection waits. Return whether it was taken."""
        free = not self._waiting and self._may_have(owner)
        if free:
            self._take(owner)
        return free

    def wait(self, owner: Hashable, granted: Callable[[], object]) -> WaitingConnection:
        """Put a connection into the queue, until its place is granted or abandon() is called."""
        waiting = WaitingConnection(owner, granted)
        self._waiting.setdefault(owner, deque()).append(waiting)
        self._recall(1)
        self._serve()
        return waiting

    def abandon(self, waiting: WaitingConnection) -> bool:
        """Remove a connection from the queue. Return False if it has got a place, which the caller must leave()."""
        others = self._waiting.get(waiting.owner, ())
        if waiting not in others:
            return False
        self._remove(waiting)
        if not self._waiting:
            self._recall(0)
        self._serve()
        return True

    def leave(self, owner: Hashable) -> None:
        """Give a place back."""
        self.taken -= 1
        self._taken_by[owner] -= 1
        if not self._taken_by[owner]:
            del self._taken_by[owner]
        self._serve()

    def _may_have(self, owner: Hashable) -> bool:
        left, taken = self.most - self.taken, self._taken_by[owner]
        return bool(lib.iou_may_have(taken, 1, left) if taken else left)

    def _take(self, owner: Hashable) -> None:
        self.taken += 1
        self._taken_by[owner] += 1

    def _remove(self, waiting: WaitingConnection) -> None:
        others = self._waiting[waiting.owner]
        others.remove(waiting)
        if not others:
            del self._waiting[waiting.owner]

    def _serve(self) -> None:
        served = []
        while (owner := next(filter(self._may_have, self._waiting), None)) is not None:
            waiting = self._waiting[owner][0]
            self._remove(waiting)
            if owner in self._waiting:
                self._waiting.move_to_end(owner)
            self._take(owner)
            served.append(waiting)
        if served and not self._waiting:
            self._recall(0)
        for waiting in served:
            waiting.granted()


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
