# SPDX-License-Identifier: Apache-2.0
"""Side-by-side measurement: interleaved rounds, medians, processor time, a Markdown table."""

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def interleaved(
    contenders: dict[str, Callable[[], None]], rounds: int, prepare: Callable[[], None]
) -> dict[str, float]:
    """Return the median seconds of each contender.

    All run once in each round, in turning order, so that what the machine does besides hits all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        for name in turned(names, turn):
            prepare()
            start = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def turned(items: Sequence[_T], number: int) -> list[_T]:
    """Let another one begin in each round."""
    start = number % len(items)
    return [*items[start:], *items[:start]]


def drop_cache(fd: int) -> None:
    """Write back what the page cache has of a file, and drop it."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    """Return the processor time of all processes of ours that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
