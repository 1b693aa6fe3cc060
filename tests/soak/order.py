# SPDX-License-Identifier: Apache-2.0
"""What a history of operations on images allows a reader to see: a model that knows nothing of storage but order.

Every write fills its units with stamps of its own, so that each unit that is read names the write that it comes from;
a unit of zeros comes from some zero, or was never written. Two rules follow from what the daemon promises:

- Superseded: what was answered, or whose client is gone, or which failed, takes no effect after a later operation on
  the same unit was answered. Later: sent after that.
- Frozen: what was answered, or whose ticket's removal was answered, takes no effect any more. Who saw something else
  in a unit after that does not see it later.

The same is asked of each call of storage whose operation is known, whether somebody reads what it wrote or not.
Nothing else is asserted, so that whatever is reported is a violation: of two operations under way at the same time
either may win, and of an operation that nobody has seen begin nobody knows when it ends.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from tests.support.stamps import FOREIGN, ZERO

#: Units that share a list of what may concern them.
_BUCKET = 64


@dataclass(eq=False)
class Incarnation:
    """A ticket from its installation to its end. begun: when it was sent; ended: when what ended it was answered."""

    ticket: str
    image: str
    begun: float
    ended: float = inf


@dataclass(frozen=True)
class Removal:
    """DELETE of a ticket that was answered with 204. image: of the ticket; None: there was no such ticket."""

    ticket: str
    image: str | None
    sent: float
    answered: float


@dataclass(eq=False)
class Operation:
    """A write, or a zero, of the units from start to end.

    good: it was answered with success. closed: later ones exclude it from then on: it was answered, or its client was
    gone after it had begun. done: it takes no effect from then on. possible: the tickets by which it may have run.
    """

    number: int
    ticket: str
    start: int
    end: int
    zero: bool
    sent: float
    by: str = ""
    good: bool = False
    closed: float = inf
    done: float = inf
    possible: list[Incarnation] = field(default_factory=list)

    def answer(self, now: float, *, good: bool) -> None:
        """Note that it was answered. What failed may still have to end."""
        self.closed = now
        if good:
            self.good, self.done = True, now

    def lose(self, now: float, *, begun: bool) -> None:
        """Note that its client is gone, unanswered. begun: storage was seen to work on it before."""
        if begun:
            self.closed = now

    @property
    def images(self) -> set[str]:
        """Return the images that it may have changed."""
        return {incarnation.image for incarnation in self.possible}

    def __str__(self) -> str:
        what = "zero" if self.zero else "write"
        end = "good" if self.good else "not good"
        times = f"sent {self.sent:.4f}, closed {self.closed:.4f}, done {self.done:.4f}"
        return f"#{self.number} {what} {self.start}..{self.end} of {sorted(self.images)} by {self.by}: {times}, {end}"


@dataclass(frozen=True)
class Observation:
    """What was read: seen[i] are the writers of unit start + i."""

    image: str
    start: int
    seen: list[frozenset[int]]
    sent: float
    answered: float
    by: str = ""

    def at(self, unit: int) -> frozenset[int] | None:
        """Return who wrote a unit; None: it was not looked at."""
        return self.seen[unit - self.start] if 0 <= unit - self.start < len(self.seen) else None


@dataclass(frozen=True)
class Call:
    """A write to storage, of the units from start to end, that only operation `number` can have caused."""

    number: int
    image: str
    start: int
    end: int
    ended: float


@dataclass(frozen=True)
class Violation:
    """Units that show what they must not show, and why."""

    image: str
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"{self.image}, units {self.start}..{self.end}: {self.why}"


class History:
    """Operations on images, which hold zeros at first. check() judges when all have ended."""

    def __init__(self) -> None:
        self.operations: dict[int, Operation] = {}
        self.observations: list[Observation] = []
        self.incarnations: list[Incarnation] = []
        self.removals: list[Removal] = []
        self.calls: list[Call] = []

    def check(self) -> list[Violation]:
        """Return what must not have happened."""
        self._settle()
        return [*self._late_calls(), *self._wrong_views()]

    def _late_calls(self) -> Iterator[Violation]:
        for call in self.calls:
            op = self.operations[call.number]
            if call.ended > op.done:
                yield Violation(call.image, call.start, call.end, f"{op} was done and still wrote at {call.ended:.4f}")
            for later in self.operations.values():
                overlaps = later.start < call.end and call.start < later.end and later.images == {call.image}
                if overlaps and later.good and later.sent > op.closed and later.done < call.ended:
                    why = f"{op} wrote until {call.ended:.4f}, though {later} was answered"
                    yield Violation(call.image, max(call.start, later.start), min(call.end, later.end), why)

    def _wrong_views(self) -> list[Violation]:
        concerned, observed = self._by_bucket()
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for observation in self.observations:
            for unit, seen in enumerate(observation.seen, observation.start):
                key = (observation.image, unit // _BUCKET)
                view = _View(unit, observation, concerned[key], observed[key])
                for why in view.violations(seen, self.operations):
                    found[observation.image, why].append(unit)
        return [
            Violation(image, start, end, why)
            for (image, why), units in found.items()
            for start, end in _runs(sorted(set(units)))
        ]

    def _settle(self) -> None:
        """Find out which tickets operations ran by, and since when they are done."""
        tickets = defaultdict(list)
        for incarnation in self.incarnations:
            tickets[incarnation.ticket].append(incarnation)
        for op in self.operations.values():
            # What nobody has seen begin may be read by the server at any time.
            op.possible = [i for i in tickets[op.ticket] if i.begun < op.closed and i.ended > op.sent]
            for removal in self.removals:
                if _ended_by(op, removal):
                    op.done = min(op.done, removal.answered)
            op.closed = min(op.closed, op.done)

    def _by_bucket(self) -> tuple[dict[tuple[str, int], list[Operation]], dict[tuple[str, int], list[Observation]]]:
        concerned: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for op in self.operations.values():
            for image in op.images:
                for bucket in range(op.start // _BUCKET, -(-op.end // _BUCKET)):
                    concerned[image, bucket].append(op)
        observed: dict[tuple[str, int], list[Observation]] = defaultdict(list)
        for observation in self.observations:
            end = observation.start + len(observation.seen)
            for bucket in range(observation.start // _BUCKET, -(-end // _BUCKET)):
                observed[observation.image, bucket].append(observation)
        return concerned, observed


def _ended_by(op: Operation, removal: Removal) -> bool:
    """Tell whether the 204 says that nothing of the operation runs any more.

    It says so of all that tickets of this id have started, and of all that tickets which had ended before have started
    on the same image.
    """
    if op.ticket == removal.ticket:
        return op.sent < removal.answered and all(i.ended <= removal.answered for i in op.possible)
    return removal.image is not None and all(i.image == removal.image and i.ended <= removal.sent for i in op.possible)


class _View:
    """One unit as an observation shows it."""

    def __init__(
        self, unit: int, observation: Observation, operations: list[Operation], observations: list[Observation]
    ) -> None:
        self._unit = unit
        self._observation = observation
        image = observation.image
        self._operations = [op for op in operations if op.start <= unit < op.end]
        #: Answered before this was looked at, and certainly here.
        self._before = [
            op for op in self._operations if op.good and op.done < observation.sent and op.images == {image}
        ]
        self._seen_before = [
            (other.sent, seen)
            for other in observations
            if other.answered < observation.sent and (seen := other.at(unit)) is not None
        ]

    def violations(self, seen: frozenset[int], operations: Mapping[int, Operation]) -> Iterator[str]:
        """Return why what is seen is wrong. operations: by number."""
        by = f"{self._observation.by} at {self._observation.sent:.4f}"
        for number in seen:
            if number == ZERO:
                zeros = [op for op in self._operations if op.zero]
                reasons = [self._why_not(ZERO, op) for op in zeros] + [self._why_not(ZERO, _NEVER_WRITTEN)]
                if all(reasons):
                    yield f"zeros, but {'; '.join(filter(None, reasons))}; read by {by}"
            elif number == FOREIGN or operations.get(number) not in self._operations:
                yield f"bytes of {operations.get(number, 'nobody')}, which has no business here; read by {by}"
            elif reason := self._why_not(number, operations[number]):
                yield f"{reason}; read by {by}"

    def _why_not(self, value: int, op: Operation) -> str | None:
        """Return why an operation is not what is seen."""
        if op.sent >= self._observation.answered:
            return f"{op} was not sent yet"
        for later in self._before:
            if later.sent > op.closed and later is not op:
                return f"{op} is superseded by {later}"
        for when, seen in self._seen_before:
            if when > op.done and value not in seen:
                return f"{op} was not there at {when:.4f} when it was done"
        return None


#: Zeros that were there at first.
_NEVER_WRITTEN = Operation(ZERO, "", 0, 0, zero=True, sent=-inf, by="nobody", closed=-inf, done=-inf)


def _runs(units: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return the runs of consecutive units."""
    for _, run in groupby(enumerate(units), lambda item: item[1] - item[0]):
        members = [unit for _, unit in run]
        yield members[0], members[-1] + 1
