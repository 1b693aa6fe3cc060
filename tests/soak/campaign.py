# SPDX-License-Identifier: Apache-2.0
"""One round of a campaign: clients that write, read and vanish, a manager that replaces and removes tickets, slow
storage; and the history of it all.

The seed decides what is tried, not when what happens. What storage did is read from the file of tests.support.slow.
"""

import json
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.soak.lines import LINES, Line, Lost, connect
from tests.soak.order import Call, History, Incarnation, Observation, Operation, Removal
from tests.support.daemon import Daemon, ticket
from tests.support.polling import LONGEST_INTERVAL
from tests.support.stamps import UNIT, ZERO, stamped, writers

IMAGES = ("a", "b")
TICKETS = 4
WORKERS = 8
#: Units of an image, of which most operations use the first ones.
SIZE = 8192
HOT = 512
BLOCK = 4096 // UNIT
#: How long a client that vanishes waits to see its request begin, in seconds.
BEGIN = 0.3


class Range(NamedTuple):
    """Units from start to end."""

    start: int
    end: int

    @property
    def offset(self) -> int:
        return self.start * UNIT

    @property
    def length(self) -> int:
        return (self.end - self.start) * UNIT


class Storage:
    """What the daemon's storage has been asked, as far as it has told.

    path: the file of tests.support.slow, of which only what comes from now on counts. inodes: of images.
    """

    def __init__(self, path: Path, inodes: dict[int, str]) -> None:
        self._lock = threading.Lock()
        self._file = path.open("rb")
        self._file.seek(0, os.SEEK_END)  # what came before was of other images
        self._inodes = inodes
        self._part = b""
        self._numbers: set[int] = set()
        self._zeros: Counter[int] = Counter()
        self.running: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.begun = 0

    def close(self) -> None:
        self._file.close()

    def has_begun(self, number: int) -> bool:
        """Tell whether an operation has written something."""
        with self._lock:
            self._follow()
            return number in self._numbers

    def zeros_at(self, offset: int) -> int:
        """Return how many zeros have begun at an offset of whatever image."""
        with self._lock:
            self._follow()
            return self._zeros[offset]

    def follow(self) -> None:
        """Take note of what was told meanwhile."""
        with self._lock:
            self._follow()

    def _follow(self) -> None:
        lines = (self._part + self._file.read()).split(b"\n")
        self._part = lines.pop()
        for line in lines:
            what, when, inode, offset, length, seen = line.split()
            image = self._inodes.get(int(inode))
            if image is not None:
                self._note(what == b"+", float(when), image, int(offset), int(length), {*map(int, seen.split(b","))})

    def _note(self, begins: bool, when: float, image: str, offset: int, length: int, seen: set[int]) -> None:
        self.running[image] += 1 if begins else -1
        if begins:
            self.begun += 1
            self._numbers |= seen
            self._zeros[offset] += seen == {ZERO}
        elif len(seen) == 1 and (number := min(seen)) > ZERO:
            self.calls.append(Call(number, image, offset // UNIT, -(-(offset + length) // UNIT), when))


class Round:
    """One round. directory: where its images are. All threads end by themselves when `seconds` have passed."""

    def __init__(self, daemon: Daemon, directory: Path, calls: Path, seed: int, seconds: float) -> None:
        self._daemon = daemon
        self._seed = seed
        self._stop_at = time.monotonic() + seconds
        self.history = History()
        self._paths = {image: directory / image for image in IMAGES}
        self._names = {image: [path, *_other_names(path)] for image, path in self._paths.items()}
        self.storage = Storage(calls, {path.stat().st_ino: image for image, path in self._paths.items()})
        self._lock = threading.Lock()
        self._living: dict[str, Incarnation] = {}
        self._leaving: set[Incarnation] = set()
        self._fresh = _fresh_starts(random.Random(seed))
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Run it, and leave the history complete. Raises what a thread has raised."""
        manager = Manager(self, random.Random(self._seed))
        manager.begin()
        workers = [Worker(self, number, random.Random(self._seed * 1000 + number)) for number in range(WORKERS)]
        work = [manager.run, *(worker.run for worker in workers)]
        threads = [threading.Thread(target=self._guarded, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        manager.end()
        self.storage.follow()
        self.history.calls = [call for call in self.storage.calls if call.number in self.history.operations]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as e:  # noqa: BLE001 - raised again in run()
            self._failures.append(e)

    @property
    def goes_on(self) -> bool:
        """Tell whether there is time left."""
        return not self._failures and time.monotonic() < self._stop_at

    @property
    def daemon(self) -> Daemon:
        return self._daemon

    # Tickets

    def living(self) -> list[Incarnation]:
        """Return the tickets that are installed."""
        with self._lock:
            return list(self._living.values())

    def is_certain(self, incarnation: Incarnation) -> bool:
        """Tell whether nobody has begun to end a ticket."""
        with self._lock:
            return incarnation not in self._leaving

    def name_of(self, image: str, choose: random.Random) -> Path:
        """Return one of the names of an image."""
        return choose.choice(self._names[image])

    @contextmanager
    def ending(self, *tickets: str) -> Iterator[list[Incarnation]]:
        """Have tickets end, at the end of the block at the latest."""
        with self._lock:
            ended = [self._living.pop(name) for name in tickets if name in self._living]
            self._leaving.update(ended)
        yield ended
        for incarnation in ended:
            incarnation.ended = time.monotonic()

    @contextmanager
    def installing(self, name: str, image: str) -> Iterator[None]:
        """Have a ticket installed in the block. Clients connect for it only after that, or they may get another one."""
        incarnation = Incarnation(name, image, begun=time.monotonic())
        with self._lock:
            self.history.incarnations.append(incarnation)
        yield
        with self._lock:
            self._living[name] = incarnation

    # Operations

    def fresh_start(self) -> int | None:
        """Return the first unit of a zero that can be told from all others, if one is left."""
        with self._lock:
            return self._fresh.pop() if self._fresh else None

    def operation(self, incarnation: Incarnation, where: Range, by: str, *, zero: bool) -> Operation:
        """Note that an operation is sent now."""
        with self._lock:
            number = len(self.history.operations) + 1
            op = Operation(number, incarnation.ticket, *where, zero=zero, sent=time.monotonic(), by=by)
            self.history.operations[number] = op
        return op

    def observe(self, image: str, where: Range, data: bytes, sent: float, by: str) -> None:
        """Note what was read just now."""
        seen = writers(data, where.start)
        observation = Observation(image, where.start, seen, sent, time.monotonic(), by)
        with self._lock:
            self.history.observations.append(observation)

    def look(self, image: str, where: Range, by: str) -> None:
        """Read a part of an image behind the daemon's back."""
        sent = time.monotonic()
        with self._paths[image].open("rb") as file:
            self.observe(image, where, os.pread(file.fileno(), where.length, where.offset), sent, by)


class Worker:
    """One client after the other, each for a few requests."""

    def __init__(self, round_: Round, number: int, choose: random.Random) -> None:
        self._round = round_
        self._number = number
        self._choose = choose
        self._fresh: int | None = None
        self._kind = LINES[number % len(LINES)]

    def run(self) -> None:
        """Do something until the round ends."""
        while self._round.goes_on:
            living = self._round.living()
            if not living:
                time.sleep(LONGEST_INTERVAL)
                continue
            incarnation = self._choose.choice(living)
            try:
                line = connect(self._kind, self._round.daemon, incarnation.ticket, self._choose.randrange(2**32))
            except Lost:
                continue
            try:
                self._use(line, incarnation)
            except Lost:
                pass
            finally:
                line.close()

    def _use(self, line: Line, incarnation: Incarnation) -> None:
        """Send some requests, the last of which may be left alone."""
        for _ in range(self._choose.randrange(1, 12)):
            what = self._choose.random()
            if not self._round.goes_on:
                return
            if what < 0.25:
                self._read(line, incarnation, self._range())
            elif what < 0.75:
                zero = what > 0.62
                self._change(line, incarnation, self._zero_range() if zero else self._range(), zero=zero)
            elif what < 0.85:
                self._forsake(line, incarnation)
                return

    def _range(self) -> Range:
        length = self._choose.choice((1, 3, BLOCK, BLOCK, 2 * BLOCK, 64, 64, 300))
        start = self._choose.randrange(HOT - length)
        if self._choose.random() < 0.7 and length >= BLOCK:
            start -= start % BLOCK
        return Range(start, start + length)

    def _zero_range(self) -> Range:
        """Return what is zeroed while somebody waits for it: it begins where no zero does that shall be told."""
        start = 2 * BLOCK * self._choose.randrange(HOT // BLOCK // 2 - 1) + self._choose.choice((0, 0, BLOCK + 1))
        return Range(start, start + self._choose.choice((1, BLOCK, 3 * BLOCK, 100)))

    def _long_zero_range(self) -> Range:
        """Return what is zeroed by a client that vanishes: it can be seen to begin."""
        self._fresh = self._round.fresh_start()
        if self._fresh is None:
            return self._zero_range()
        return Range(self._fresh, self._choose.choice((self._fresh + 4 * BLOCK, SIZE)))

    def _read(self, line: Line, incarnation: Incarnation, where: Range) -> None:
        sent = time.monotonic()
        data = line.read(where.offset, where.length)
        if data is not None and self._round.is_certain(incarnation):
            self._round.observe(incarnation.image, where, data, sent, line.kind)

    def _change(self, line: Line, incarnation: Incarnation, where: Range, *, zero: bool) -> None:
        """Write, or zero, and wait for the answer."""
        op, request = self._request(line, incarnation, where, zero=zero)
        before = self._seen(op)
        try:
            line.send(request)
            good = line.answer()
        except Lost:
            op.lose(time.monotonic(), begun=self._seen(op) > before)
            raise
        op.answer(time.monotonic(), good=good)

    def _forsake(self, line: Line, incarnation: Incarnation) -> None:
        """Send a request, or a part of it, vanish, and have another client write to the same place."""
        zero = self._choose.random() < 0.3
        where = self._long_zero_range() if zero else self._range()
        op, request = self._request(line, incarnation, where, zero=zero)
        before = self._seen(op)
        sent = self._choose.choice((len(request), len(request), len(request) * 2 // 3))
        try:
            line.send(request[:sent])
            deadline = time.monotonic() + self._choose.choice((0, BEGIN, BEGIN, BEGIN))
            while time.monotonic() < deadline and not self._seen(op) > before:
                time.sleep(0.001)
        except Lost:
            pass
        begun = self._seen(op) > before
        line.reset()
        op.lose(time.monotonic(), begun=begun)
        if self._choose.random() < 0.8:
            self._follow(incarnation, Range(where.start, min(where.end, where.start + 128)))

    def _follow(self, incarnation: Incarnation, where: Range) -> None:
        kind = self._choose.choice(LINES)
        try:
            line = connect(kind, self._round.daemon, incarnation.ticket, self._choose.randrange(2**32))
        except Lost:
            return
        try:
            self._change(line, incarnation, where, zero=False)
            self._read(line, incarnation, where)
        except Lost:
            pass
        finally:
            line.close()

    def _request(self, line: Line, incarnation: Incarnation, where: Range, *, zero: bool) -> tuple[Operation, bytes]:
        op = self._round.operation(incarnation, where, line.kind, zero=zero)
        if zero:
            return op, line.zero(where.offset, where.length)
        return op, line.write(where.offset, stamped(op.number, *where))

    def _seen(self, op: Operation) -> int:
        """Return a number that is larger when storage has begun to work on the operation, as far as that is known."""
        storage = self._round.storage
        if not op.zero:
            return int(storage.has_begun(op.number))
        return storage.zeros_at(op.start * UNIT) if op.start == self._fresh else 0


class Manager:
    """Install, replace and remove tickets."""

    def __init__(self, round_: Round, choose: random.Random) -> None:
        self._round = round_
        self._choose = choose
        self._tickets = [secrets.token_hex(16) for _ in range(TICKETS)]

    def begin(self) -> None:
        """Install all."""
        for name in self._tickets:
            self._install(name)

    def run(self) -> None:
        """Change something now and then, until the round ends."""
        while self._round.goes_on:
            time.sleep(self._choose.uniform(0, 0.3))
            name, what = self._choose.choice(self._tickets), self._choose.random()
            if what < 0.5:
                self._replace(name)
            elif what < 0.9:
                self._remove(name)
                self._install(name)
            else:
                self._remove_all()

    def end(self) -> None:
        """Remove all, and see that images do not change any more."""
        for name in self._tickets:
            self._remove(name)
        storage = self._round.storage
        storage.follow()
        assert not any(storage.running.values()), f"storage works after the last 204: {storage.running}"
        begun = storage.begun
        for _ in range(2):
            for image in IMAGES:
                self._round.look(image, Range(0, SIZE), "the test, at the end")
            time.sleep(0.2)
        storage.follow()
        assert storage.begun == begun, "storage was asked for something after the last 204"

    def _install(self, name: str) -> None:
        image = self._choose.choice(IMAGES)
        fields = ticket(self._round.name_of(image, self._choose), SIZE * UNIT, sparse=self._choose.random() < 0.5)
        document = json.dumps({**fields, "uuid": name}).encode()
        with self._round.installing(name, image):
            answer = self._round.daemon.control("PUT", f"/tickets/{name}", document)
            assert answer.status == 200, answer

    def _replace(self, name: str) -> None:
        for _ in range(self._choose.randrange(1, 3)):
            with self._round.ending(name):
                self._install(name)

    def _remove(self, name: str) -> None:
        sent = time.monotonic()
        with self._round.ending(name) as ended:
            image = ended[0].image if ended else None
            while (status := self._round.daemon.control("DELETE", f"/tickets/{name}").status) != 204:
                assert status == 409, status
        self._round.history.removals.append(Removal(name, image, sent, time.monotonic()))
        if image is not None:
            self._round.look(image, Range(0, HOT), "the test, after a 204")

    def _remove_all(self) -> None:
        with self._round.ending(*self._tickets):
            assert self._round.daemon.control("DELETE", "/tickets/").status == 204
        for name in self._tickets:
            self._remove(name)
            self._install(name)


def _fresh_starts(choose: random.Random) -> list[int]:
    """Return where zeros may begin that are to be seen to begin, each once: odd blocks, where no other zero begins.

    Those among the units that are used most are the last, which are taken first.
    """
    starts = [block * BLOCK for block in range(1, SIZE // BLOCK - 4, 2)]
    choose.shuffle(starts)
    return sorted(starts, key=lambda start: start < HOT)


def _other_names(path: Path) -> list[Path]:
    """Make the image and two more names of it."""
    with path.open("wb") as file:
        file.truncate(SIZE * UNIT)
    hard, symbolic = path.with_suffix(".hard"), path.with_suffix(".symbolic")
    hard.hardlink_to(path)
    symbolic.symlink_to(path)
    return [hard, symbolic]
