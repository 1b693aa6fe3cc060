# SPDX-License-Identifier: Apache-2.0
"""A process that changes a qcow2 image until it is killed, and tells how far it has come.

    python -m tests.soak.qcow2.writer PATH SEED PROGRESS

Each of its threads has a part of the disk, and a sequence of changes that is known to whoever knows the seed. PROGRESS
is a file of two numbers for each thread: how many changes it has begun, and how many of them a flush has covered.
"""

import mmap
import random
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tests.qcow2.disk import Disk, Layer

THREADS = 3
SECTOR = 512
PROGRESS = struct.Struct("=QQ")


class Change(NamedTuple):
    """kind: write, zero, trim or flush. data: what is there then; of a trim it, or what was there before."""

    kind: str
    offset: int
    data: bytes


def changes(seed: str, thread: int, size: int) -> Iterator[Change]:
    """Yield the changes of a thread of a disk of this size, without end."""
    part = size // THREADS // SECTOR * SECTOR
    rng = random.Random(f"{seed} {thread}")
    while True:
        kind = rng.choice(("write",) * 6 + ("zero", "zero", "trim", "flush"))
        offset = rng.randrange(part // SECTOR)
        length = min(rng.choice((1, 1, 3, 8, 8, 128, 300)), part // SECTOR - offset)
        data = rng.randbytes(8) * (length * SECTOR // 8) if kind == "write" else bytes(length * SECTOR)
        yield Change(kind, thread * part + offset * SECTOR, b"" if kind == "flush" else data)


def work(disk: Disk, sequence: Iterator[Change], tell: Callable[[int, int], None]) -> None:
    """Change the disk. tell: before each change, how many have begun, and how many of them a flush has covered."""
    covered = 0
    for number, (kind, offset, data) in enumerate(sequence, 1):
        tell(number, covered)
        match kind:
            case "write":
                disk.write(offset, data)
            case "zero":
                disk.zero(offset, len(data))
            case "trim":
                disk.trim(offset, len(data))
            case _:
                disk.flush()
                covered = number


def wrong_sectors(found: bytes, seed: str, progress: bytes, before: bytes) -> list[int]:
    """Return the sectors of a disk that hold what they must not, when its writers have come so far."""
    changed = _legal(seed, progress, before)
    sectors = ((at // SECTOR, slice(at, at + SECTOR)) for at in range(0, len(before), SECTOR))
    return [number for number, part in sectors if found[part] not in changed.get(number, [before[part]])]


def _legal(seed: str, progress: bytes, before: bytes) -> dict[int, list[bytes]]:
    """Return what each sector that was changed may hold.

    What a flush has covered is there, what came after that may be. A trim may leave what was there.
    """
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    for thread, (begun, covered) in enumerate(PROGRESS.iter_unpack(progress)):
        done = islice(changes(seed, thread, len(before)), begun)
        for number, (kind, offset, data) in enumerate(done, 1):
            for at in range(0, len(data), SECTOR):
                sector = found[(offset + at) // SECTOR]
                if not sector:
                    start = offset + at
                    sector.append(before[start : start + SECTOR])
                if number <= covered and kind != "trim":
                    sector.clear()
                sector.append(data[at : at + SECTOR])
    return found


def tell_progress(numbers: memoryview, thread: int, begun: int, covered: int) -> None:
    """Store the numbers of a thread, each at once: Struct.pack_into() writes zeros first, which a kill may leave."""
    numbers[2 * thread] = begun
    numbers[2 * thread + 1] = covered


def main() -> None:
    path, seed, told = sys.argv[1:]
    with Path(told).open("r+b") as file:
        numbers = memoryview(mmap.mmap(file.fileno(), THREADS * PROGRESS.size)).cast("Q")
    disk = Disk([Layer(Path(path))])
    for thread in range(THREADS):
        tell = partial(tell_progress, numbers, thread)
        threading.Thread(target=work, args=(disk, changes(seed, thread, disk.info.size), tell)).start()


if __name__ == "__main__":
    main()
