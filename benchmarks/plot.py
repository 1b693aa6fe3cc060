# SPDX-License-Identifier: Apache-2.0
"""A plot of the ratios by the size of requests."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.cases import SIZES, size_text
from benchmarks.rounds import Measured

#: Colours that everybody can tell apart: Okabe and Ito, 2008.
RATE, CPU = "#0072B2", "#E69F00"
#: Line styles by the number of connections.
STYLES: dict[int, Literal["-", "--"]] = {1: "-", 4: "--"}
PANELS = tuple(itertools.product(("put", "get"), ("tls", "unix")))


def draw(results: Sequence[Measured], path: Path) -> None:
    """Write a PNG with rate and server CPU, imageio-daemon / ovirt-imageio, for reads and writes of a file.

    A panel for each operation and transport. Loop devices and zeroing are in the table only.
    """
    mpl.use("Agg")
    figure = Figure(figsize=(8.5, 6.5), layout="constrained")
    for axes, (operation, transport) in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, PANELS, strict=True):
        _draw_panel(axes, operation, transport, results)
    figure.supxlabel("size of a request")
    figure.supylabel("imageio-daemon / ovirt-imageio")
    figure.legend(
        handles=[
            Line2D([], [], color=RATE, marker="o"),
            Line2D([], [], color=CPU, marker="s"),
            *(Line2D([], [], color="black", linestyle=style) for style in STYLES.values()),
        ],
        labels=["rate (more is better)", "server CPU (less is better)", "1 connection", "4 connections"],
        loc="outside upper center",
        ncols=4,
    )
    figure.savefig(path, dpi=110)


def _draw_panel(axes: Axes, operation: str, transport: str, results: Sequence[Measured]) -> None:
    for connections, style in STYLES.items():
        shown = {
            one.case.size: one
            for one in results
            if (one.case.operation, one.case.transport, one.case.connections, one.case.storage)
            == (operation, transport, connections, "file")
        }
        places = [place for place, size in enumerate(SIZES) if size in shown]
        measured = [shown[SIZES[place]] for place in places]
        axes.plot(places, [one.ratio(one.rate) for one in measured], style, color=RATE, marker="o")
        axes.plot(places, [one.ratio(one.cpu) for one in measured], style, color=CPU, marker="s")
    axes.axhline(1, color="grey", linewidth=1)
    axes.set_yscale("log", base=2)
    axes.set_xticks(range(len(SIZES)), [size_text(size) for size in SIZES])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, axis="y", linewidth=0.3)
    axes.set_title(f"{operation.upper()}, {'TLS' if transport == 'tls' else 'unix socket'}")
