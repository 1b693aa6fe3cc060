# SPDX-License-Identifier: Apache-2.0
"""The power goes off while threads change a qcow2 image: it is sound, and has what a flush of a thread has covered.

The log of every write is replayed up to each flush and each write with FUA, whoever made it, and to a loss of power
before each of these.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import pytest

from tests.ioutil.disk import fill
from tests.qcow2.checker import Checked
from tests.qcow2.disk import Disk, checked, create
from tests.soak.qcow2.writer import PROGRESS, THREADS, changes, work, wrong_sectors

from .kernel_storage import FILESYSTEM, SECTOR, SIZE, Mapped, loop_disk, mapped, mounted, run, snapshot
from .logwrites import LOSS, PROMISE, promises

#: What a guest sees.
DISK = 3 << 20
#: Of each thread.
CHANGES = 40


class Story:
    """How far the threads have come at each mark in the log."""

    def __init__(self, device: Mapped) -> None:
        self.marks: list[bytes] = []
        self._device = device
        self._progress = bytearray(THREADS * PROGRESS.size)
        self._lock = threading.Lock()

    def tell(self, thread: int, begun: int, covered: int) -> None:
        """Note it for a thread, and put a mark into the log if a flush of it has ended."""
        with self._lock:  # no other begins a change meanwhile
            _, before = PROGRESS.unpack_from(self._progress, thread * PROGRESS.size)
            PROGRESS.pack_into(self._progress, thread * PROGRESS.size, begun, covered)
            if covered > before:
                self.mark()

    def mark(self) -> None:
        self._device.mark(f"mark{len(self.marks)}")
        self.marks.append(bytes(self._progress))


def between(first: bytes, second: bytes) -> bytes:
    """Return the progress from one mark to the next: what was covered at the first, and has begun before the second."""
    both = zip(PROGRESS.iter_unpack(second), PROGRESS.iter_unpack(first), strict=True)
    return b"".join(PROGRESS.pack(begun, covered) for (begun, _), (_, covered) in both)


@contextlib.contextmanager
def image_on(place: str, device: Path, *, make: bool = True) -> Iterator[Path]:
    """Yield the image: the device, or a file of its file system."""
    if place == "device":
        yield device
        return
    with mounted(place, device, make=make) as directory:
        yield directory / "image"


def change(path: Path, seed: str, story: Story) -> None:
    """Let all threads make their changes."""
    with Disk(path) as disk, ThreadPoolExecutor(THREADS) as threads:

        def one(thread: int) -> None:
            work(disk, islice(changes(seed, thread, DISK), CHANGES), partial(story.tell, thread))

        list(threads.map(one, range(THREADS)))  # raises what one of them has raised
    story.mark()


def replayed(log: Path, target: Path, seed: str, marks: list[bytes], look: Callable[[], bytes]) -> dict[str, int]:
    """Look at the image at each point, and return how many there were. look: checks and reads it."""
    told = {f"mark{n}": between(*pair) for n, pair in enumerate(pairwise([*marks, marks[-1]]))}
    points = {"marks": 0, "promises": 0, "losses": 0}
    progress = b""
    for step in promises(log, target, random.Random(seed)):
        progress = told.get(step, progress)
        if not progress or step not in (*told, PROMISE, LOSS):
            continue
        wrong = wrong_sectors(look(), seed, progress, bytes(DISK))
        assert not wrong, (step, points, wrong)
        points[{PROMISE: "promises", LOSS: "losses"}.get(step, "marks")] += 1
    assert points["marks"] == len(marks)
    assert points["losses"] > 0
    return points


@pytest.mark.parametrize("seed", ["ext4 64k", "xfs 4k", "device 64k", "device 4k"])
def test_image_is_sound_and_has_what_was_flushed(seed: str) -> None:
    place, cluster_size = seed.split()
    size = SIZE if place == "device" else FILESYSTEM

    def look() -> bytes:
        # Recovery writes to the disk, and the replay goes on with it.
        with snapshot(target, size) as copy, image_on(place, copy, make=False) as path:
            image = Checked(path.read_bytes())
            assert checked(path) in (0, 3), image.wrong
            return bytes(image.content())

    with loop_disk(size) as disk, loop_disk(FILESYSTEM) as log, loop_disk(size) as target:
        if place == "device":
            for full_of_garbage in (disk, target):
                fill(full_of_garbage, size, 1)
        else:
            run("modprobe", place)
        with mapped(f"0 {size // SECTOR} log-writes {disk} {log}") as device:
            story = Story(device)
            with image_on(place, device.path) as path:
                create(path, DISK, f"cluster_size={cluster_size}")
                run("sync", path)
                story.mark()
                change(path, seed, story)
        print(seed, replayed(log, target, seed, story.marks, look))
