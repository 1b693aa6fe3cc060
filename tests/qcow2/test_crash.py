# SPDX-License-Identifier: Apache-2.0
"""What a loss of power leaves, at points all over a random session with several writers: an image whose worst is
clusters that are counted and not used, and in which everything is that a flush has covered."""

import os
import random
import threading
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from ioutil_ext import lib

from .checker import Checked
from .crash import SECTOR, Barrier, Counts, Recorder, Replay, is_block
from .disk import Disk, Layer, checked, create, qemu_io, run

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
pytestmark = [pytest.mark.timeout(7200)] if LONG else []
POINTS, OPERATIONS = (4000, 400) if LONG else (60, 60)
WRITERS = 3


class Kind(NamedTuple):
    """options: of qemu-img. device: in a block device that is full of garbage."""

    size: int
    options: tuple[str, ...] = ()
    overlay: bool = False
    snapshot: bool = False
    device: bool = False


KINDS = {
    "default": Kind(4 << 20),
    "4k": Kind(1 << 20, ("cluster_size=4k",)),
    "512": Kind(128 << 10, ("cluster_size=512",)),
    "512-narrow": Kind(128 << 10, ("cluster_size=512", "refcount_bits=1")),
    "512-wide": Kind(128 << 10, ("cluster_size=512", "refcount_bits=64")),
    "4k-wide": Kind(1 << 20, ("cluster_size=4k", "refcount_bits=64")),
    "overlay": Kind(1 << 20, ("cluster_size=4k",), overlay=True),
    "snapshot": Kind(256 << 10, ("cluster_size=1k",), snapshot=True),
    "device": Kind(2 << 20, device=True),
    "device-4k": Kind(512 << 10, ("cluster_size=4k",), device=True),
    "device-512": Kind(128 << 10, ("cluster_size=512", "refcount_bits=64"), device=True),
}


class Done(NamedTuple):
    """A change of a sector, and the events between which it was made. durable: when it has ended, by itself."""

    start: int
    end: int
    data: bytes
    durable: bool


class Session:
    """Random operations, and what each sector may hold after a crash."""

    def __init__(self, kind: Kind, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        path = directory / "image"
        self.layers = [Layer(path)]
        self.below = b""
        if kind.overlay:
            self.below = self.rng.randbytes(kind.size // 2) + bytes(kind.size // 4)
            (directory / "below").write_bytes(self.below)
            self.layers = [Layer(path, str(directory / "below")), Layer(directory / "below", raw=True)]
        create(
            path, kind.size, *kind.options, backing=self.layers[-1].path if kind.overlay else None, backing_format="raw"
        )
        if kind.snapshot:
            qemu_io(path, f"write -P 5 0 {kind.size // 2}")
            run("qemu-img", "snapshot", "-c", "s", path)
        data = path.read_bytes()
        if kind.device:
            data = data.ljust(-(-len(data) // 65536) * 65536, b"\0")
            data += self.rng.randbytes(2 * kind.size)
        device = next((p for p in Path("/dev").iterdir() if is_block(p)), None) if kind.device else None
        if kind.device and device is None:
            pytest.skip("no block device has a name here")
        self.initial = bytes(Checked(data).content(self.below))
        self.recorder = Recorder(path, data, device)
        self.history: defaultdict[int, list[Done]] = defaultdict(list)
        self.flushes: list[tuple[int, int]] = []

    def run(self) -> None:
        failures: list[BaseException] = []
        with self.recorder.installed():
            disk = Disk(self.layers, shared=True)
            part = len(self.initial) // WRITERS & ~(SECTOR - 1)

            def work(number: int) -> None:
                rng = random.Random(f"{self.seed} {number}")
                try:
                    for _ in range(OPERATIONS):
                        self._step(disk, rng, number * part, part)
                except BaseException as e:  # noqa: BLE001  # told below
                    failures.append(e)

            workers = [threading.Thread(target=work, args=(number,)) for number in range(WRITERS)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            self._flush(disk)
            assert not failures, (self.seed, failures)
            disk.close()

    def _step(self, disk: Disk, rng: random.Random, start: int, length: int) -> None:
        offset = start + rng.randrange(length) // SECTOR * SECTOR
        size = min(rng.choice((1, 1, 2, 8, 8, 20, 140)) * SECTOR, start + length - offset)
        began, durable = self.recorder.now, False
        match rng.randrange(10):
            case 0:
                self._flush(disk)
                return
            case 1:
                disk.zero(offset, size)
                data = bytes(size)
            case 2:
                disk.trim(offset, size)
                data = disk.read(offset, size)
            case 3:
                disk.write(offset, data := rng.randbytes(size), lib.IOU_FUA)
                durable = True
            case _:
                disk.write(offset, data := rng.randbytes(size))
        ended = self.recorder.now
        for at in range(0, size, SECTOR):
            self.history[(offset + at) // SECTOR].append(Done(began, ended, data[at : at + SECTOR], durable))

    def _flush(self, disk: Disk) -> None:
        began = self.recorder.now
        disk.flush()
        self.flushes.append((began, self.recorder.now))

    def wrong(self, content: bytearray, point: int) -> str:
        """Return what must not be in an image after a crash at an event; "" if all is well."""
        image = Checked(content)
        if image.wrong:
            return image.wrong[0]
        found = image.content(self.below)
        covered = max((start for start, end in self.flushes if end <= point), default=-1)
        for sector in range(len(self.initial) // SECTOR):
            at = sector * SECTOR
            have, first = bytes(found[at : at + SECTOR]), self.initial[at : at + SECTOR]
            done = self.history.get(sector, [])
            last = max((i for i, one in enumerate(done) if one.end <= (point if one.durable else covered)), default=-1)
            legal = [first if last < 0 else done[last].data]
            legal += [one.data for one in done[last + 1 :] if one.start < point]
            if have not in legal:
                return f"sector {sector} has {have[:8].hex()}, not one of {len(legal)}"
        return ""

    def crashes(self, points: int, counts: Counts = lambda number, barrier: True) -> list[str]:
        """Crash at points all over the session; return what was wrong."""
        replay = Replay(self.recorder, counts)
        found = []
        for point in sorted(self.rng.randrange(self.recorder.now + 1) for _ in range(points)):
            wrong = self.wrong(replay.crashed(point, self.rng), point)
            if wrong:
                found.append(f"at {point} of {self.recorder.now}: {wrong}")
        return found


def sound(path: Path) -> bool:
    return checked(path) in (0, 3)


@pytest.mark.parametrize("name", KINDS)
def test_crashes(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30) if LONG else 7
    session = Session(KINDS[name], tmp_path, seed)
    session.run()
    assert session.crashes(POINTS) == [], seed
    # the checker of these tests and qemu's agree on the end, and on a crash
    assert not session.wrong(session.recorder.content, session.recorder.now)
    path = session.layers[0].path
    path.write_bytes(session.recorder.content)
    assert sound(path)
    path.write_bytes(Replay(session.recorder).crashed(session.recorder.now // 2, session.rng))
    assert sound(path)


def barriers_of_threads(session: Session) -> dict[int, bool]:
    """Return the barriers of the session, by their events, and whether another one of the same flush follows."""
    found: dict[int, bool] = {}
    last: dict[int, int] = {}
    starts = {start for start, _ in session.flushes}
    for number, event in enumerate(session.recorder.events):
        if isinstance(event, Barrier):
            before = last.get(event.thread)
            if before is not None and not any(before < start <= number for start in starts):
                found[before] = True
            found[number] = False
            last[event.thread] = number
    return found


@pytest.mark.parametrize("name", ["4k", "device-4k"])
def test_each_barrier_is_needed(name: str, tmp_path: Path) -> None:
    """Without the first barrier of flushes, or the last one, crashes are found that must not be."""
    session = Session(KINDS[name], tmp_path, 3)
    session.run()
    follows = barriers_of_threads(session)
    assert session.crashes(200, lambda number, _: not follows[number])
    assert session.crashes(200, lambda number, _: follows[number])
