# SPDX-License-Identifier: Apache-2.0
"""What was sent to an image, and so what each of its bytes may be."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

Range = tuple[int, int]

#: A change of at most so many bytes is one operation of storage. A longer one may be made, and recorded, in pieces.
PIECE = 64 * 1024


class Content(Enum):
    """What a change leaves, if not bytes of its own."""

    ZEROS = "zeros"
    UNKNOWN = "unknown"


@dataclass(eq=False)
class Change:
    """A change of the bytes from start to end, which are content after it. sent and answered: by one clock of all."""

    start: int
    end: int
    content: bytes | Content
    sent: int
    answered: int | None = None

    def __str__(self) -> str:
        what = self.content.value if isinstance(self.content, Content) else "bytes"
        return f"{what} {self.start}-{self.end} sent {self.sent} answered {self.answered}"

    def part(self, start: int, end: int) -> bytes | None:
        """Return the bytes from start to end of the image after it; None: nobody knows them."""
        if isinstance(self.content, bytes):
            return self.content[start - self.start : end - self.start]
        return bytes(end - start) if self.content is Content.ZEROS else None


@dataclass(frozen=True)
class Excess:
    """A range of the record that the image does not have."""

    start: int
    end: int
    why: str
    changes: tuple[str, ...] = ()


@dataclass
class Sent:
    """The changes of one image, since its content was looked at.

    content: what it was then. told: the ranges of it that the record told then. Thread-safe.
    """

    content: bytes
    told: Sequence[Range] = ()
    changes: list[Change] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clock: Iterator[int] = field(default_factory=itertools.count)

    def send(self, start: int, end: int, content: bytes | Content) -> Change:
        """Note that a change is sent now."""
        with self._lock:
            change = Change(start, end, content, next(self._clock))
            self.changes.append(change)
        return change

    def answer(self, change: Change) -> None:
        """Note that a change succeeded. One that failed, or has no answer, may be there in part."""
        with self._lock:
            change.answered = next(self._clock)

    def excess(self, told: Sequence[Range], image: bytes) -> list[Excess]:
        """Return what is told now of an image and is not what was sent and confirmed."""
        return [
            Excess(start, end, why, self._changes(start, end))
            for first, last in told
            for start, end in self._segments(first, last)
            if (why := self._why_not(start, end, image[start:end]))
        ]

    def _changes(self, start: int, end: int) -> tuple[str, ...]:
        told = [f"told at first: {first}-{last}" for first, last in self.told if first < end and start < last]
        return (*told, *(str(change) for change in self.changes if change.start < end and start < change.end))

    def _segments(self, first: int, last: int) -> Iterator[Range]:
        """Yield parts in which each change has all or nothing."""
        edges = {first, last}
        for start, end in (*self.told, *((change.start, change.end) for change in self.changes)):
            edges |= {edge for edge in (start, end) if first < edge < last}
        yield from itertools.pairwise(sorted(edges))

    def _why_not(self, start: int, end: int, found: bytes) -> str:
        """Return why a range that is told must not be, or an empty string."""
        candidates, whole = self._candidates(start, end)
        if not candidates:
            return "nothing was sent, or it may have been trimmed"
        if found in candidates:
            return ""
        if any(all(byte != content[at] for content in candidates) for at, byte in enumerate(found)):
            return "the content is not what was sent"
        return "a part of a change" if whole and len(candidates) == 2 else ""

    def _candidates(self, start: int, end: int) -> tuple[list[bytes], bool]:
        """Return what the bytes may be, of what may be told, and whether each change is made as a whole."""
        here = [change for change in self.changes if change.start <= start and end <= change.end]
        finished = [change for change in here if change.answered is not None]
        last = max((change.sent for change in finished), default=-1)
        # Those that were answered before another one was sent are gone.
        alive = [change for change in here if change.answered is None or change.answered > last]
        contents = [change.part(start, end) for change in alive]
        if not finished and any(first <= start and end <= last for first, last in self.told):
            contents.append(self.content[start:end])
        whole = all(change.end - change.start <= PIECE for change in alive)
        return [content for content in contents if content is not None], whole
