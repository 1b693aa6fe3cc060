# SPDX-License-Identifier: Apache-2.0
"""The order of the system calls of a daemon that died: had the power gone at any of them, what would be on the disk?

A change of an image is on the disk when a flush that began after its end has succeeded; before that it may be there in
part. What is written to a journal may be on the disk at once, up to any byte, and has to be after a sync.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from imageio_daemon.image import journal
from tests.soak.crash.sent import Range
from tests.support.killedcalls import START

Read = Callable[[bytes], list[Range]]


def told_by(text: bytes) -> list[Range]:
    """Return what a journal tells, of whatever image and ticket it is."""
    first = text.split(b"\n", 1)[0].decode(errors="replace").split(" ")
    with contextlib.suppress(journal.Damaged):
        return journal.read(text, " ".join(first[2:-1]))
    return []


@dataclass(frozen=True)
class Call:
    """One call of the trace."""

    name: str
    path: str
    second: str
    offset: int
    length: int
    changed: Range
    data: bytes

    @property
    def range(self) -> Range:
        return self.offset, self.offset + self.length


@dataclass
class Trace:
    """The calls of a trace, each at its begin and, with its result, at its end."""

    on_start: Callable[[], None]
    on_begin: Callable[[Call], None]
    on_end: Callable[[Call, int], None]

    def follow(self, lines: Iterable[str]) -> None:
        """Tell all. lines: of whole lives of processes; the last one of each may be torn."""
        running: dict[str, Call] = {}
        for line in lines:
            words = line.split(" ")
            if words == [START]:
                running = {}
                self.on_start()
            elif words[0] == "+" and line.endswith("."):
                running[words[1]] = call = _call(words)
                self.on_begin(call)
            elif words[0] == "-" and len(words) > 2:
                self.on_end(running.pop(words[1]), int(words[2]))


def _call(words: list[str]) -> Call:
    name, path, second = words[2:5]
    offset, length, changed, changed_length = map(int, words[5:9])
    return Call(name, path, second, offset, length, (changed, changed + changed_length), bytes.fromhex(words[9][:-1]))


def without(ranges: Iterable[Range], taken: Range) -> list[Range]:
    """Return ranges less one of them."""
    start, end = taken
    parts = [part for first, last in ranges for part in ((first, min(last, start)), (max(first, end), last))]
    return [(first, last) for first, last in parts if first < last]


@dataclass
class ImageOnDisk:
    """Which bytes of an image are surely on the disk, as they were written."""

    size: int
    _sure: bytearray = field(init=False)
    _ended: list[Range] = field(default_factory=list)
    _running: list[Call] = field(default_factory=list)
    _flushes: dict[int, list[Range]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sure = bytearray(self.size)

    def start(self) -> None:
        """Let what ran end: the process is gone."""
        self._ended += [call.range for call in self._running]
        self._running = []
        self._flushes = {}

    def begin(self, call: Call) -> None:
        """Note that a call begins."""
        if call.name == "sync":
            self._flushes[id(call)] = list(self._ended)
            return
        start, end = call.changed
        self._sure[start:end] = bytes(end - start)
        self._ended = without(self._ended, call.changed)
        self._flushes = {key: without(ranges, call.changed) for key, ranges in self._flushes.items()}
        self._running.append(call)

    def end(self, call: Call, result: int) -> None:
        """Note that a call has ended."""
        if call.name == "sync":
            flushed = self._flushes.pop(id(call))
            for start, end in flushed if result == 0 else ():
                self._sure[start:end] = b"\1" * (end - start)
            return
        self._running.remove(call)
        if result < 0:
            return
        ended = [call.range]
        for other in self._running:
            ended = without(ended, other.changed)
        self._ended += ended

    def has(self, start: int, end: int) -> bool:
        """Tell whether all bytes of a range are surely there."""
        return self._sure.find(0, start, end) == -1


@dataclass
class FileOnDisk:
    """What a file of the state directory holds: now, and in the worst cases after a power cut."""

    now: bytes = b""
    possible: set[bytes] = field(default_factory=lambda: {b""})

    def write(self, call: Call) -> None:
        """Have it written: any part of it may be there."""
        for length in _torn(call.data):
            self.possible.add(self._with(call.offset, call.data[:length]))
        self.now = self._with(call.offset, call.data)

    def _with(self, offset: int, data: bytes) -> bytes:
        return self.now[:offset].ljust(offset, b"\0") + data + self.now[offset + len(data) :]

    def cut(self, length: int) -> None:
        """Have it cut."""
        self.now = self.now[:length].ljust(length, b"\0")
        self.possible.add(self.now)

    def sync(self, content: bytes) -> None:
        """Forget what it held before."""
        after = [state for state in self.possible if len(state) > len(content) and state.startswith(content)]
        self.possible = {content, self.now, *after}


def _torn(data: bytes) -> Iterator[int]:
    """Yield how much of a write may be there: whole lines, and a part of one more."""
    place = 0
    for line in data.splitlines(keepends=True):
        yield place + len(line) // 2
        place += len(line)
        yield place


@dataclass
class StateOnDisk:
    """The files of the state directory, by name. One that is replaced may come back until the directory is synced."""

    names: dict[str, FileOnDisk] = field(default_factory=dict)
    before: dict[str, list[FileOnDisk]] = field(default_factory=dict)
    _syncs: dict[int, bytes] = field(default_factory=dict)

    def begin(self, call: Call) -> None:
        """Note that a call begins: it may have its effect from now on."""
        if call.name == "sync" and call.path in self.names:
            self._syncs[id(call)] = self.names[call.path].now
        elif call.name == "create":
            self.names.setdefault(call.path, FileOnDisk())
        elif call.name == "empty":
            self.names.setdefault(call.path, FileOnDisk()).cut(0)
        elif call.name == "write":
            self.names.setdefault(call.path, FileOnDisk()).write(call)
        elif call.name == "truncate":
            self.names[call.path].cut(call.length)
        elif call.name == "unlink":
            self._replace(call.path, None)
        elif call.name == "rename" and call.path in self.names:
            self._replace(call.second, self.names.pop(call.path))

    def _replace(self, name: str, new: FileOnDisk | None) -> None:
        if name in self.names:
            self.before.setdefault(name, []).append(self.names.pop(name))
        if new is not None:
            self.names[name] = new

    def end(self, call: Call, result: int) -> None:
        """Note that a call has ended."""
        if call.name != "sync" or result < 0:
            return
        if call.path in self.names:
            self.names[call.path].sync(self._syncs.pop(id(call)))
        else:
            for name in [name for name in self.before if os.path.dirname(name) == call.path]:
                del self.before[name]

    def possible(self, name: str) -> set[bytes]:
        """Return what a file may hold after a power cut."""
        files = [self.names[name]] if name in self.names else []
        return {content for file in (*files, *self.before.get(name, ())) for content in file.possible}


@dataclass
class PowerCuts:
    """Look at the state after each call as if the power went then.

    image: its path. size: of it. journal: the path of its journal. read: the daemon's reader of a journal's content.
    """

    image: str
    size: int
    journal: str
    read: Read = told_by
    found: list[str] = field(default_factory=list)
    calls: int = 0
    _image: ImageOnDisk = field(init=False)
    _state: StateOnDisk = field(default_factory=StateOnDisk)
    _told: dict[bytes, list[Range]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._image = ImageOnDisk(self.size)

    def follow(self, lines: Iterable[str]) -> None:
        """Look at all calls of a trace, or of its next lives."""
        Trace(self._image.start, self._begin, self._end).follow(lines)

    def _begin(self, call: Call) -> None:
        self.calls += 1
        if call.path == self.image:
            self._image.begin(call)
            if call.name != "sync":
                self._look(self._told, call, *call.changed)
        elif self._is_of_state(call):
            self._state.begin(call)
            self._look_at_journal(call)

    def _end(self, call: Call, result: int) -> None:
        if call.path == self.image:
            self._image.end(call, result)
        elif self._is_of_state(call):
            self._state.end(call, result)
            self._look_at_journal(call)

    def _is_of_state(self, call: Call) -> bool:
        directory = os.path.dirname(self.journal)
        return directory in (call.path, os.path.dirname(call.path))

    def _look_at_journal(self, call: Call) -> None:
        before = self._told
        self._told = {
            content: before[content] if content in before else self.read(content)
            for content in self._state.possible(self.journal)
        }
        self._look({content: told for content, told in self._told.items() if content not in before}, call, 0, self.size)

    def _look(self, journals: dict[bytes, list[Range]], call: Call, first: int, last: int) -> None:
        for told in journals.values():
            for start, end in ((max(start, first), min(end, last)) for start, end in told):
                if start < end and not self._image.has(start, end):
                    self.found.append(
                        f"call {self.calls} ({call.name} {call.path} {call.offset} {call.length}): "
                        f"{start}-{end} is told, and not surely on the disk"
                    )
