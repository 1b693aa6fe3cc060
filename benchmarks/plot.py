# SPDX-License-Identifier: Apache-2.0
"""A picture of the ratios."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.cases import GOALS
from benchmarks.rounds import Measured

#: Colours that differ for everyone: Okabe and Ito, 2008.
RATE, CPU = "#0072B2", "#E69F00"
BAR = 0.4


def draw(results: Sequence[Measured], path: Path) -> None:
    """Write a PNG with two bars for each case: rate and processor time, ours/theirs, and where the goals are."""
    mpl.use("Agg")
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(results)), layout="constrained")
    axes = figure.subplots()
    places = range(len(results))
    axes.barh([place - BAR / 2 for place in places], [one.ratio(one.rate) for one in results], BAR, color=RATE)
    axes.barh([place + BAR / 2 for place in places], [one.ratio(one.cpu) for one in results], BAR, color=CPU)
    goals = {goal.case: goal for goal in GOALS}
    for place, result in enumerate(results):
        if (goal := goals.get(result.case)) is not None:
            _mark(axes, goal.rate, place - BAR / 2)
            _mark(axes, goal.cpu, place + BAR / 2)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(list(places), [one.case.name for one in results])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("imageio-daemon / ovirt-imageio")
    figure.legend(
        handles=[mpl.patches.Patch(color=RATE), mpl.patches.Patch(color=CPU), mpl.lines.Line2D([], [], color="black")],
        labels=["rate (more is better)", "server CPU (less is better)", "to reach"],
        loc="outside upper center",
        ncols=3,
    )
    figure.savefig(path, dpi=110)


def _mark(axes: Axes, limit: float | None, at: float) -> None:
    if limit is not None:
        axes.plot([limit, limit], [at - BAR / 2, at + BAR / 2], color="black", linewidth=2)
