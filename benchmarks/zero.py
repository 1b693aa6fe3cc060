# SPDX-License-Identifier: Apache-2.0
"""Zeroing a large image on each storage type, beside the tools that do the same job.

python -m benchmarks.zero [--quick] [--size GIB] [--rounds N] [--directory DIR] [--only NAME]

Root only. The goal: our time is at most 1.1 times that of the best tool that does the same job, plus 20 ms.

All do the same job:
- Each finds the image as a hole with 64 pieces of data.
- Each ends with an fsync. fallocate(1) calls it in any case, while dd and blkdiscard left up to 2 GiB of zeros in the
  page cache of the file that this storage lies in.
- Where zeros are data, this storage has been written once from end to end. It lies in a sparse file, and who is the
  first to write there lets that one grow: 4 GiB took 7.5 s, and 5.2 s when done again.

For a quiet machine. We zero 8 GiB in 33 calls, the tools in one, and each call on a loop device waits for a thread of
the kernel: 32 took 1.9 ms at best, and 150 ms (median of 12) beside other work, at a load of 14 for each processor.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.cases import GiB, MiB
from benchmarks.machine import busy
from benchmarks.measure import drop_cache, interleaved
from ioutil_ext import ffi, lib
from tests.ioutil.engine_driver import Image
from tests.support.realstorage import (
    STORAGE_TYPES,
    Storage,
    StorageType,
    filled,
    interrupted_by_sigterm,
    missing,
    mounted,
)
from tests.support.syscalls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, fallocate

FACTOR, CONSTANT = 1.1, 0.020

HEADER = ("storage", "job", "method", "ours, ms", "others, ms", "limit, ms", "kept")

Contenders = dict[str, Callable[[], None]]


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


def write_zeros(path: Path, size: int) -> None:
    run("dd", "if=/dev/zero", f"of={path}", "bs=8M", f"count={size // (8 * MiB)}", "oflag=direct", "conv=notrunc")


def ours(path: Path, size: int, flags: int, methods: set[str]) -> None:
    """Zero with a new image each time: nothing is known from the round before."""
    with Image(path) as image:
        result = image.zero(0, size, flags)
    methods.add(ffi.string(lib.iou_method_name(result.method)).decode())


def tools(storage: Storage, path: Path, size: int, *, allocate: bool) -> Contenders:
    """Return what does the same job here: leaves holes, or keeps the range provisioned."""
    contenders: Contenders = {}
    filesystem, is_block = storage.type.filesystem, storage.is_block
    length = ("--offset", "0", "--length", str(size), path)
    if is_block:
        contenders["blkdiscard -z"] = functools.partial(run, "blkdiscard", "--zeroout", "--force", path)
    if is_block or filesystem in ("ext4", "xfs", "btrfs"):
        contenders["fallocate -z"] = functools.partial(run, "fallocate", "--zero-range", *length)
    # Punching does not keep a range provisioned; a device without offload refuses it.
    if not allocate and storage.offload:
        contenders["fallocate -p"] = functools.partial(run, "fallocate", "--punch-hole", *length)
    if allocate and filesystem == "tmpfs":
        contenders["fallocate -p, fallocate"] = functools.partial(punch_and_allocate, length)
    if allocate or not storage.offload:
        contenders["dd"] = functools.partial(write_zeros, path, size)
    return contenders


def punch_and_allocate(length: tuple[str | Path, ...]) -> None:
    run("fallocate", "--punch-hole", *length)
    run("fallocate", *length)


def bench(storage: Storage, size: int, rounds: int, *, allocate: bool) -> list[str]:
    """Measure one storage type and return its row."""
    path = storage.make(size)
    methods: set[str] = set()
    flags = lib.IOU_ALLOCATE if allocate else 0
    contenders: Contenders = {"ours": functools.partial(ours, path, size, flags, methods)}
    contenders |= tools(storage, path, size, allocate=allocate)
    contenders = {name: functools.partial(durable, path, zero) for name, zero in contenders.items()}
    prepare = functools.partial(prepared, storage, path)
    seconds = interleaved(contenders, rounds, prepare)
    mine = seconds.pop("ours")
    best = min(seconds, key=lambda name: seconds[name])
    limit = seconds[best] * FACTOR + CONSTANT
    others = ", ".join(f"{name} {1000 * value:.0f}" for name, value in sorted(seconds.items(), key=lambda i: i[1]))
    job = "allocate" if allocate else "deallocate"
    verdict = "yes" if mine <= limit else "NO"
    return [storage.name, job, ", ".join(sorted(methods)), f"{1000 * mine:.0f}", others, f"{1000 * limit:.0f}", verdict]


def durable(path: Path, zero: Callable[[], None]) -> None:
    zero()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def prepared(storage: Storage, path: Path) -> None:
    """Make the image a hole with 64 pieces of data: the same for all, whatever the one before left."""
    backing = storage.backing(path)
    with backing.open("r+b") as file:
        fallocate(file.fileno(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, backing.stat().st_size)
    piece = b"x" * MiB
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for offset in range(0, size, size // 64):
            file.seek(offset)
            file.write(piece)
        file.flush()
        drop_cache(file.fileno())


@contextmanager
def made(storage_type: StorageType, parent: str, size: int) -> Iterator[Storage]:
    """Make storage with room for one image of size bytes, and for what the file system needs for itself."""
    room = size + size // 4 + 400 * MiB
    with tempfile.TemporaryDirectory(dir=parent) as directory, ExitStack() as cleanup:
        where = cleanup.enter_context(mounted(storage_type.filesystem, Path(directory), room))
        if not storage_type.allocates:
            with filled(where):
                pass
        yield Storage(storage_type, where, cleanup)


def storages(names: list[str]) -> Iterator[StorageType]:
    """Yield the types of these names, or all, that can be made here."""
    for storage_type in STORAGE_TYPES:
        if names and storage_type.name not in names:
            continue
        if reason := missing(storage_type.filesystem):
            print(f"{storage_type.name}: {reason}", file=sys.stderr)
        else:
            yield storage_type


def show(cells: Sequence[str]) -> None:
    """Print a row as soon as it is known: a run takes many minutes."""
    print("| " + " | ".join(cells) + " |", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 MiB, one round, as a smoke test")
    parser.add_argument("--size", type=int, default=8, help="GiB of each image")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where the storage is made")
    parser.add_argument("--only", action="append", default=[], help="names of storage types")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    size, rounds = (256 * MiB, 1) if options.quick else (options.size * GiB, options.rounds)
    if warning := busy():
        print(warning, file=sys.stderr)
    show(HEADER)
    show(["---"] * len(HEADER))
    kept = True
    with interrupted_by_sigterm():
        for storage_type in storages(options.only):
            for allocate in (False, True):
                with made(storage_type, options.directory, size) as storage:
                    row = bench(storage, size, rounds, allocate=allocate)
                show(row)
                kept = kept and row[-1] == "yes"
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
