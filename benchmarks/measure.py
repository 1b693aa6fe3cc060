# SPDX-License-Identifier: Apache-2.0
"""Side-by-side measurement: interleaved rounds, medians, a Markdown table."""

import statistics
import time
from collections.abc import Callable, Sequence


def interleaved(
    contenders: dict[str, Callable[[], None]], rounds: int, prepare: Callable[[], None]
) -> dict[str, float]:
    """Return the median seconds of each contender.

    All run once in each round, in turning order, so that what the machine does besides hits all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            prepare()
            start = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
