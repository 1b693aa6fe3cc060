# SPDX-License-Identifier: Apache-2.0
"""Speed of zero detection on data in cache and in memory: python -m benchmarks.is_zero [--quick]."""

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.cases import KiB, MiB
from benchmarks.measure import table
from ioutil_ext import ffi, lib

#: GB/s on data in cache, below which zero detection would cost more than it saves.
GOAL = 10.0


def speed(check: Callable[[], object], size: int, seconds: float) -> float:
    """Return the median GB/s of slices of time."""
    repeat = max(1, 64 * MiB // size)
    speeds: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(speeds) < 5:
        start = time.perf_counter()
        for _ in range(repeat):
            check()
        speeds.append(size * repeat / (time.perf_counter() - start) / 1e9)
    return statistics.median(speeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, as a smoke test")
    seconds = 0.1 if parser.parse_args().quick else 1.0
    rows = []
    reached = True
    for size in (4 * KiB, 64 * KiB, 256 * KiB, 1 * MiB, 64 * MiB):
        memory = bytearray(size)
        zeros = bytes(size)
        pointer = ffi.from_buffer(memory)
        ours = speed(lambda p=pointer, n=size: lib.iou_is_zero(p, n), size, seconds)  # type: ignore[misc]
        compared = speed(lambda m=memory, z=zeros: m == z, size, seconds)  # type: ignore[misc]
        counted = speed(lambda m=memory: m.count(0) == len(m), size, seconds / 10)  # type: ignore[misc]
        if size in (64 * KiB, 256 * KiB):
            reached = reached and ours >= GOAL
        rows.append([f"{size // KiB} KiB", f"{ours:.1f}", f"{compared:.1f}", f"{counted:.1f}"])
    print(table(["buffer", "iou_is_zero, GB/s", "== zeros, GB/s", "count(0), GB/s"], rows))
    print(f"\ngoal: {GOAL:.0f} GB/s on data in cache (64 and 256 KiB): {'reached' if reached else 'MISSED'}")
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
