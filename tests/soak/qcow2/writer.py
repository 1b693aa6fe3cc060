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
from collections.abc import Iterator
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


def changes(seed: str, thread: int, part: int) -> Iterator[Change]:
    """Yield the changes of a thread, without end. part: bytes of the disk that each thread has."""
    rng = random.Random(f"{seed} {thread}")
    while True:
        kind = rng.choice(("write",) * 6 + ("zero", "zero", "trim", "flush"))
        offset = rng.randrange(part // SECTOR)
        length = min(rng.choice((1, 1, 3, 8, 8, 128, 300)), part // SECTOR - offset)
        data = rng.randbytes(8) * (length * SECTOR // 8) if kind == "write" else bytes(length * SECTOR)
        yield Change(kind, thread * part + offset * SECTOR, b"" if kind == "flush" else data)


def work(disk: Disk, seed: str, thread: int, part: int, progress: mmap.mmap) -> None:
    """Change the disk for ever."""
    covered = 0
    for number, (kind, offset, data) in enumerate(changes(seed, thread, part), 1):
        PROGRESS.pack_into(progress, thread * PROGRESS.size, number, covered)
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


def main() -> None:
    path, seed, told = sys.argv[1:]
    with Path(told).open("r+b") as file:
        progress = mmap.mmap(file.fileno(), THREADS * PROGRESS.size)
    disk = Disk([Layer(Path(path))])
    part = disk.info.size // THREADS // SECTOR * SECTOR
    for thread in range(THREADS):
        threading.Thread(target=work, args=(disk, seed, thread, part, progress)).start()


if __name__ == "__main__":
    main()
