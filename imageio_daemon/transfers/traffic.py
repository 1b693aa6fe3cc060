# SPDX-License-Identifier: Apache-2.0
"""The operations and lanes of a transfer, their totals and rate, and the pauses that the average rate leaves out."""

from collections import Counter, deque
from collections.abc import Callable

from ..image.ranges import RangeSet
from ..lanes.lane import Lane
from ..storage.operation import Kind, Operation, Totals, WaitingOperation, ZeroMethod, totals_of
from ..units import MiB

#: A function that returns the time in seconds, as time.monotonic() does.
Clock = Callable[[], float]

#: Number of kept samples. With one every two seconds, the oldest is 8 to 10 s old.
SAMPLES = 5


class Rate:
    """The growth of a count per second. `now` is the time of any clock, in seconds. Not thread-safe."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)], SAMPLES)

    def sample(self, now: float, count: int) -> None:
        """Keep the present count, and forget the oldest. Call this at regular times."""
        self._samples.append((now, count))

    def per_second(self, now: float, count: int) -> int:
        """Return the growth per second since the oldest sample, 0 if no time has passed. Changes nothing."""
        then, before = self._samples[0]
        return round((count - before) / (now - then)) if now > then else 0


class Pauses:
    """Add up the time in which nothing ran, as seen by look() at regular times. Not thread-safe.

    A pause counts up to the last look() in it. A short pause, or the end of a long one, is missed.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._seconds = 0.0
        self._before = 0.0  # pauses before this one

    def look(self, since: float, now: float) -> None:
        """Note that nothing runs now. The last request has ended at `since`. Both are times of one clock."""
        if since != self._since:
            self._before += self._seconds
            self._since = since
        self._seconds = now - since

    def until(self, active: float) -> float:
        """Return the seconds of all pauses before the last request, which has ended at `active`."""
        return self._before + (self._seconds if self._since != active else 0.0)


class Traffic:
    """Hold the operations and lanes of a transfer, and count their requests and bytes.

    A lane serves its requests without an Operation for each. The clock counts seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = Rate(clock())
        self._pauses = Pauses()
        self._operations: set[Operation] = set()
        self._counted: set[Operation] = set()  # operations whose bytes are progress
        self._lanes: set[Lane] = set()
        self._changing: set[Operation | Lane] = set()  # operations and lanes that may change the image
        self._transferred = RangeSet()
        self._requests = 0
        self._bytes = 0
        self._totals = Totals()  # totals of ended operations and lanes

    # Running operations and lanes

    @property
    def any(self) -> bool:
        """Return whether an operation or a lane may use the image."""
        return bool(self._operations or self._lanes)

    @property
    def running(self) -> int:
        """Return how many requests run now."""
        return len(self._operations) + sum(lane.running for lane in self._lanes)

    def storage_waits(self) -> list[float]:
        """Return, for each request and lane that waits for storage, the seconds it has waited."""
        return [wait for used in self.all() if (wait := used.storage_wait)]

    @property
    def slowest(self) -> WaitingOperation | None:
        """Return the operation that has been in storage longest, if there is any."""
        return max((waiting for used in self.all() if (waiting := used.waiting)), default=None)

    def all(self) -> list[Operation | Lane]:
        """Return all operations and lanes. Each can be cancelled."""
        return [*self._operations, *self._lanes]

    # Beginning and end

    @property
    def changing(self) -> bool:
        """Return whether an operation or a lane may change the image."""
        return bool(self._changing)

    def changing_lanes(self) -> list[Lane]:
        """Return the lanes that may change the image."""
        return [lane for lane in self._lanes if lane in self._changing]

    def begin(self, op: Operation, *, counts: bool, part: bool, changes: bool) -> None:
        """Add an operation.

        Pass counts=True if its bytes are progress, part=True if another operation counts its request, and changes=True
        if it may change the image.
        """
        self._operations.add(op)
        if changes:
            self._changing.add(op)
        self._requests += not part
        if counts:
            self._counted.add(op)

    def end(self, op: Operation) -> None:
        """Remove an operation and keep its totals."""
        self._operations.discard(op)
        self._changing.discard(op)
        if op in self._counted:
            self._counted.remove(op)
            self._transferred.add(op.offset, op.offset + op.progress)
        self._bytes += op.progress
        self._totals = self._totals.plus(totals_of(op))

    def add_lane(self, lane: Lane, *, changes: bool) -> None:
        """Add a lane. Pass changes=True if it may change the image."""
        self._lanes.add(lane)
        if changes:
            self._changing.add(lane)

    def remove_lane(self, lane: Lane) -> None:
        """Remove a lane and keep its totals. No effect if it was not added."""
        if lane not in self._lanes:
            return
        self._lanes.remove(lane)
        self._changing.discard(lane)
        self._fetch(lane)
        self._requests += lane.stats.requests
        self._bytes += lane.done
        self._totals = self._totals.plus(lane.totals())

    # Totals

    def zeroed(self, method: ZeroMethod, length: int) -> None:
        """Add `length` bytes to those that were zeroed by a method."""
        self._totals = self._totals.plus(Totals(zeroed=Counter({method: length})))

    def failed(self, kind: Kind) -> None:
        """Count an operation that storage has failed."""
        self._totals = self._totals.plus(Totals(failed=Counter([kind])))

    def collect(self) -> None:
        """Fetch the ranges that lanes have counted."""
        for lane in self._lanes:
            self._fetch(lane)

    def _fetch(self, lane: Lane) -> None:
        for start, end in lane.counted():
            self._transferred.add(start, end)

    def transferred(self) -> int:
        """Return how many bytes of the image were transferred so far. Each byte counts once."""
        self.collect()
        running = [(op.offset, op.offset + op.progress) for op in self._counted]
        return self._transferred.size_with(running) if running else self._transferred.size()

    def totals(self) -> Totals:
        """Return what storage has done so far."""
        totals = self._totals
        for op in self._operations:
            totals = totals.plus(totals_of(op))
        for lane in self._lanes:
            totals = totals.plus(lane.totals())
        return totals

    def sample(self, active: float) -> None:
        """Take a sample for the rate, and look for a pause. Call this at regular times.

        `active` is when the last request has ended.
        """
        now = self._clock()
        self._rate.sample(now, self.totals().moved)
        if not self.running:
            self._pauses.look(active, now)

    def bytes_per_second(self, moved: int) -> int:
        """Return the present rate. `moved` is the number of bytes in totals()."""
        return self._rate.per_second(self._clock(), moved)

    def fields(self, seconds: float, active: float) -> dict[str, object]:
        """Return the fields of the log line of a transfer that took `seconds`, with the last request until `active`.

        The pauses do not count for the rate.
        """
        paused = self._pauses.until(active)
        moving = seconds - paused
        return {
            "requests": self._requests,
            "bytes": self._bytes,
            "seconds": round(seconds, 3),
            **({"paused": round(paused, 3)} if paused else {}),
            "mib_per_second": round(self._bytes / MiB / moving, 1) if moving > 0 else 0,
            **{f"zero_{method}": length for method, length in self._totals.zeroed.items()},
        }
