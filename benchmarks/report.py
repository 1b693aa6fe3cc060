# SPDX-License-Identifier: Apache-2.0
"""Results as text: Markdown tables, and the place for them in docs/performance/results.md."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cases import AT_THE_DISK, GOALS, PARITY, Goal
from benchmarks.errors import BenchmarkError
from benchmarks.measure import table
from benchmarks.rounds import Measured, Metric, memory
from benchmarks.servers import OURS, PROJECT, THEIRS

DOCUMENT = PROJECT / "docs/performance/results.md"


def results_table(results: Sequence[Measured]) -> str:
    """Return a table with a line for each case; cells with two figures are ours / theirs."""
    header = (
        "work", "on", "rate", "ratio", "disk", "server CPU", "ratio",
        "p50 ms", "p99 ms", "peak RSS MiB", "load CPU",
    )  # fmt: skip
    return table(header, [_result_row(result) for result in results])


def _result_row(result: Measured) -> tuple[str, ...]:
    return (
        result.case.work,
        result.case.storage,
        f"{_rate(result, OURS.name)} / {_rate(result, THEIRS.name)} {'MB/s' if result.case.streams else 'requests/s'}",
        f"{result.ratio(result.rate):.2f}",
        f"{result.disk_rate / 1e6:.0f}" if result.disk_rate else "",
        _pair(result, result.cpu, 1, 2 if result.case.streams else 3)
        + (" s/GiB" if result.case.streams else " s/1000"),
        f"{result.ratio(result.cpu):.2f}",
        _pair(result, lambda one: one.p50, 1000, 2),
        _pair(result, lambda one: one.p99, 1000, 2),
        _pair(result, memory, 1 / 2**20, 0),
        _pair(result, lambda one: 100 * one.load_cpu / one.seconds, 1, 0) + " %",
    )


def _rate(result: Measured, program: str) -> str:
    rate = result.median(program, result.rate)
    return f"{rate / 1e6:.0f}" if result.case.streams else f"{rate:.0f}"


def _pair(result: Measured, metric: Metric, factor: float, digits: int) -> str:
    ours, theirs = (result.median(program, metric) * factor for program in (OURS.name, THEIRS.name))
    return f"{ours:.{digits}f} / {theirs:.{digits}f}"


def goals_table(results: Sequence[Measured]) -> str:
    """Return the table of what is to be reached, for the goals that were measured; nothing if none was."""
    by_case = {result.case: result for result in results}
    rows = [_goal_row(goal, by_case[goal.case]) for goal in GOALS if goal.case in by_case]
    return table(("to reach", "rate", "server CPU", "peak RSS", "verdict"), rows) if rows else ""


def _goal_row(goal: Goal, result: Measured) -> tuple[str, ...]:
    return (
        goal.case.work,
        _against(result.ratio(result.rate), goal.rate, "≥"),
        _against(result.ratio(result.cpu), goal.cpu, "≤"),
        _against(result.ratio(memory), goal.memory, "≤"),
        verdict(goal, result),
    )


def _against(ratio: float, limit: float | None, relation: str) -> str:
    return "" if limit is None else f"{ratio:.2f} ({relation} {limit})"


def verdict(goal: Goal, result: Measured) -> str:
    """Say whether a goal is reached, or what is missed."""
    missed = []
    at_the_disk = _at_the_disk(result)
    if goal.rate is not None and result.ratio(result.rate) < (min(goal.rate, PARITY) if at_the_disk else goal.rate):
        missed.append("rate")
    if goal.cpu is not None and result.ratio(result.cpu) > goal.cpu:
        missed.append("CPU")
    if goal.memory is not None and result.ratio(memory) > goal.memory:
        missed.append("RSS")
    return ("FAIL: " + ", ".join(missed) if missed else "pass") + (" (at the disk's rate)" if at_the_disk else "")


def _at_the_disk(result: Measured) -> bool:
    rates = [result.median(program, result.rate) for program in (OURS.name, THEIRS.name)]
    return result.disk_rate is not None and min(rates) >= AT_THE_DISK * result.disk_rate


def document(machine: Mapping[str, str], how: str, results: Sequence[Measured]) -> str:
    """Return all that a run has to say, as Markdown."""
    parts = [
        table(("machine", ""), list(machine.items())),
        how,
        goals_table(results),
        "Two figures in a cell are imageio-daemon / ovirt-imageio; a ratio is the one by the other.",
        results_table(results),
    ]
    return "\n\n".join(part for part in parts if part)


def with_warning(how: str, warning: str | None) -> str:
    """Add a sentence that makes figures doubtful, if there is one."""
    return f"{how} **{warning[0].upper()}{warning[1:]}.**" if warning else how


def publish(text: str, options: argparse.Namespace, name: str) -> None:
    """Print the results of a run, and write them to where the options tell. Raises BenchmarkError."""
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"{name}.md").write_text(text + "\n")
    if options.document:
        write_into(DOCUMENT, text, name)


def write_into(page: Path, text: str, name: str) -> None:
    """Replace the results of this name on a page. Raises BenchmarkError: the page has no place for them."""
    begin, end = f"<!-- {name} results -->", f"<!-- end of {name} results -->"
    before, begins, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not (begins and ends):
        raise BenchmarkError(f"{page} has no place for the results of {name}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
