# SPDX-License-Identifier: Apache-2.0
"""What runs on a transfer's image, and what was done there. Not thread-safe: the transfer's lock guards it."""

from .ranges import RangeSet
from .storage.base import Operation, ZeroMethod
from .storage.lane import Lane
from .units import MiB


class Traffic:
    """Count operations, and lanes: connections whose requests C serves, without an operation for each."""

    def __init__(self) -> None:
        self._operations: set[Operation] = set()
        self._counted: set[Operation] = set()  # those whose bytes are progress
        self._lanes: set[Lane] = set()
        self._transferred = RangeSet()
        self._requests = 0
        self._bytes = 0
        self._zeroed: dict[ZeroMethod, int] = {}

    # What runs

    @property
    def any(self) -> bool:
        """Tell whether something may use the image."""
        return bool(self._operations or self._lanes)

    @property
    def running(self) -> int:
        """Return how many requests run just now. May be asked without the lock."""
        return len(self._operations) + sum(lane.running for lane in tuple(self._lanes))

    @property
    def storage_wait(self) -> float:
        """Return for how many seconds storage has owed an answer to a request."""
        return max((used.storage_wait for used in self.all()), default=0.0)

    def all(self) -> list[Operation | Lane]:
        """Return what can be cancelled."""
        return [*self._operations, *self._lanes]

    # What comes and goes

    def begin(self, op: Operation, *, counts: bool, part: bool) -> None:
        """Note an operation. counts: its bytes are progress; part: of a request that was counted already."""
        self._operations.add(op)
        self._requests += not part
        if counts:
            self._counted.add(op)

    def end(self, op: Operation) -> None:
        """Forget an operation, but what it did."""
        self._operations.discard(op)
        if op in self._counted:
            self._counted.remove(op)
            self._transferred.add(op.offset, op.offset + op.done)
        self._bytes += op.done

    def add_lane(self, lane: Lane) -> None:
        """Note a lane."""
        self._lanes.add(lane)

    def remove_lane(self, lane: Lane) -> None:
        """Forget a lane that has ended, but what it did."""
        if lane not in self._lanes:
            return
        self._lanes.remove(lane)
        self._fetch(lane)
        self._requests += lane.stats.requests
        self._bytes += lane.done
        for method, length in lane.zeroed.items():
            self.zeroed(method, length)

    # What was done

    def zeroed(self, method: ZeroMethod, length: int) -> None:
        """Note how bytes were zeroed."""
        self._zeroed[method] = self._zeroed.get(method, 0) + length

    def collect(self) -> None:
        """Fetch what lanes have counted."""
        for lane in self._lanes:
            self._fetch(lane)

    def _fetch(self, lane: Lane) -> None:
        for start, end in lane.counted():
            self._transferred.add(start, end)

    def transferred(self) -> int:
        """Return how many bytes of the image were moved so far, each counted once."""
        self.collect()
        running = [(op.offset, op.offset + op.done) for op in self._counted]
        return self._transferred.size_with(running) if running else self._transferred.size()

    def fields(self, seconds: float) -> dict[str, object]:
        """Return what to log of a transfer that took so long."""
        return {
            "requests": self._requests,
            "bytes": self._bytes,
            "seconds": round(seconds, 3),
            "mib_per_second": round(self._bytes / MiB / seconds, 1) if seconds > 0 else 0,
            **{f"zero_{method}": length for method, length in self._zeroed.items()},
        }
