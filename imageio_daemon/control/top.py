# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl top`: a live table of the transfers, on a terminal."""

import argparse
import contextlib
import select
import shutil
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..commands.amounts import human
from . import output, transfers
from .output import State
from .service import ControlService, Usage

#: Seconds between two requests.
INTERVAL = 1.0
#: Control characters (ECMA-48) that open and close xterm's alternate screen, and go to its first line.
BEGIN, END, HOME = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l", "\033[H"
#: Control characters that clear the rest of the line, and the rest of the screen.
CLEAR_LINE, CLEAR_REST = "\033[K", "\033[J"

HEAD = ("TRANSFER", "CLIENT", *transfers.HEAD[1:])


class Rates:
    """Bytes per second of each transfer since the previous call. The daemon tells the rate of the last 8 to 10 s."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def of(self, states: Sequence[State], now: float) -> dict[str, int]:
        """Return the rates by ticket id. The first time, and for new tickets, they are the daemon's rates."""
        rates, moved = {}, {}
        for state in states:
            ticket_id, count = state["uuid"], state["read"] + state["written"]
            then, before = self._before.get(ticket_id, (now, count))
            same = now > then and count >= before  # a ticket that was replaced begins with 0
            rates[ticket_id] = round((count - before) / (now - then)) if same else state["bytes_per_second"]
            moved[ticket_id] = (now, count)
        self._before = moved
        return rates


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Show the table each second, until q or Ctrl-C. With --json, do as `transfers --watch`. Raises Usage."""
    if options.json:
        options.watch = True
        transfers.show(options, service)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Usage("top needs a terminal: `imageioctl transfers --watch` does without")
    rates = Rates()
    with _full_screen():
        while True:
            states = service.tickets(in_use="y")
            size = shutil.get_terminal_size()
            lines = screen(states, rates.of(states, time.monotonic()), size.columns, size.lines)
            sys.stdout.write(HOME + "".join(f"{line}{CLEAR_LINE}\r\n" for line in lines[:-1]))
            sys.stdout.write(lines[-1] + CLEAR_LINE + CLEAR_REST)
            sys.stdout.flush()
            if select.select([sys.stdin], [], [], INTERVAL)[0] and sys.stdin.read(1) in ("q", ""):
                return


def screen(states: Sequence[State], rates: Mapping[str, int], width: int, height: int) -> list[str]:
    """Return the lines of the screen: a summary, and as many transfers as fit."""
    used = [{**state, "bytes_per_second": rates[state["uuid"]]} for state in states]
    used.sort(key=transfers.order)
    connections = sum(state["connections"] for state in used)
    wait = max((state["storage_wait"] for state in used), default=0)
    summary = (
        f"{time.strftime('%H:%M:%S')}  {len(used)} transfers in use, {connections} connections, "
        f"{human(sum(state['bytes_per_second'] for state in used))}/s, longest wait for storage {wait} s"
    )
    table = output.table(HEAD, (_row(state) for state in used), left=transfers.LEFT, width=width, spare=transfers.SPARE)
    return [line[:width] for line in [summary, "", *table]][: max(height, 1)]


def _row(state: State) -> Sequence[object]:
    transfer, *rest = transfers.row(state)
    return transfer, _clients(state["clients"]), *rest


def _clients(clients: Sequence[Mapping[str, Any]]) -> str:
    """Return the address of the host with most connections, and the number of the other hosts."""
    hosts = Counter(client["client"].rpartition(":")[0] or client["client"] for client in clients)
    if not hosts:
        return "-"
    ((most, _),) = hosts.most_common(1)
    return most if len(hosts) == 1 else f"{most} +{len(hosts) - 1}"


@contextlib.contextmanager
def _full_screen() -> Iterator[None]:
    """Use the whole terminal and read single keys; restore the terminal at the end."""
    before = termios.tcgetattr(sys.stdin)
    sys.stdout.write(BEGIN)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(END)
        sys.stdout.flush()
