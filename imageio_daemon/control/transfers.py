# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl transfers`, which prints the transfers in use, once or each second."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from ..commands.amounts import human
from . import output
from .output import State, done, rate, shown
from .service import ControlService

#: Seconds between two requests with --watch.
INTERVAL = 1.0
#: Control characters that clear the terminal (ECMA-48 CUP, ED).
CLEAR = "\033[H\033[2J"
HEAD = ("TRANSFER", "OPS", "SIZE", "DONE", "", "RATE", "CONN", "STORAGE", "WAIT", "FOR", "ZEROED", "BY")
#: Columns of texts; columns that a narrow terminal leaves out, in this order.
LEFT = ("OPS", "CLIENT", "STORAGE", "FOR", "BY")
SPARE = ("BY", "ZEROED", "OPS", "CONN", "STORAGE", "SIZE", "WAIT", "FOR")


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Print a line for each transfer in use, first those that wait for storage longest."""
    while True:
        states = sorted(service.tickets(in_use="y"), key=order)
        if options.json:
            for state in states:
                output.json_line(shown(state, ids=False))
        else:
            clear = CLEAR if options.watch and sys.stdout.isatty() else ""
            lines = output.table(HEAD, map(row, states), left=LEFT, width=output.terminal_width(), spare=SPARE)
            print(clear + "\n".join(lines), flush=True)
        if not options.watch:
            return
        time.sleep(INTERVAL)


def row(state: State) -> Sequence[object]:
    """Return the cells of a transfer."""
    size, moved = state["size"], done(state)
    slowest = state.get("slowest_operation")
    zeroed = {method: length for method, length in state["zeroed"].items() if length}
    return (
        state["transfer"],
        ",".join(state["ops"]) or "-",
        human(size),
        human(moved),
        f"{min(moved / size, 1):.0%}" if size and "transferred" in state else "",
        rate(state),
        state["connections"],
        slowest["kind"] if slowest else "-",
        f"{state['storage_wait']} s" if state["storage_wait"] else "-",
        waits_for(state),
        human(sum(zeroed.values())) if zeroed else "-",
        ",".join(sorted(zeroed, key=lambda method: zeroed[method], reverse=True)) or "-",
    )


def waits_for(state: State) -> str:
    """Return what most of the running requests wait for."""
    requests = [client["request"] for client in state["clients"] if "request" in client]
    waits = Counter(request["waits_for"] for request in requests if request["waits_for"])
    return waits.most_common(1)[0][0] if waits else "-"


def order(state: State) -> tuple[object, ...]:
    """Return the key to sort by: transfers that wait for storage longest come first, then the fastest."""
    return -state["storage_wait"], -state["bytes_per_second"], state["transfer"]
