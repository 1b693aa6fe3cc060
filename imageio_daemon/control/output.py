# SPDX-License-Identifier: Apache-2.0
"""Output of the command: tables and texts for people, JSON lines for programs, and how tickets are shown in them."""

import json
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

from ..commands.amounts import duration, human
from ..commands.printable import printable as printable  # noqa: PLC0414 - what is printed passes here
from ..commands.printable import quoted as quoted  # noqa: PLC0414

#: GAP stands between two columns of a table, CUT where a name was shortened. It keeps LEAST_NAME columns or more.
GAP, CUT = "  ", "\N{HORIZONTAL ELLIPSIS}"
LEAST_NAME = 8


def json_line(document: Mapping[str, object]) -> None:
    """Print an object on one line."""
    print(json.dumps(document), flush=True)


def pairs(document: Mapping[str, object]) -> None:
    """Print a document for people, a line for each key."""
    for name, value in document.items():
        print(printable(f"{name}: {value if isinstance(value, str) else json.dumps(value)}"))


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if standard output is not one, and lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: Collection[str] = (),
    width: int | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table. The first column and those in `left` are aligned to the left, others to the right.

    If the table is wider than `width`, leave out columns of `spare`, one by one and in their order, until it fits; then
    shorten the texts of the first column in the middle. None is any width.
    """
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    columns = dict(enumerate(zip(*cells, strict=True)))
    for name in spare:
        if width is None or _total(columns.values()) <= width:
            break
        del columns[head.index(name)]
    if width is not None:
        most = max(LEAST_NAME, width - _total([column for number, column in columns.items() if number]) - len(GAP))
        columns[0] = tuple(shortened(cell, most) for cell in columns[0])
    aligned = [_aligned(column, left=not number or head[number] in left) for number, column in columns.items()]
    return [GAP.join(row).rstrip() for row in zip(*aligned, strict=True)]


def _total(columns: Iterable[Sequence[str]]) -> int:
    """Return the width of columns with gaps between them."""
    widths = [max(map(_width, column)) for column in columns]
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _aligned(column: Sequence[str], *, left: bool) -> list[str]:
    width = max(map(_width, column))
    padding = [" " * (width - _width(cell)) for cell in column]
    return [cell + pad if left else pad + cell for cell, pad in zip(column, padding, strict=True)]


def shortened(text: str, most: int) -> str:
    """Return the text in at most `most` columns, cut in its middle: names differ at the beginning and at the end."""
    if _width(text) <= most:
        return text
    kept = list(text)
    while _width("".join(kept)) > most - 1:
        del kept[len(kept) // 2]
    return "".join([*kept[: (len(kept) + 1) // 2], CUT, *kept[(len(kept) + 1) // 2 :]])


def _width(text: str) -> int:
    """Return the columns of a text on a terminal (Unicode Standard Annex 11; combining characters have none)."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


State = Mapping[str, Any]


def shown(state: State, *, ids: bool, people: bool = False) -> dict[str, Any]:
    """Return a state without its secrets, the id and the url of another server, unless `ids` asks for them.

    For `people`, the expiry is a text with the time that is left.
    """
    told = {name: value for name, value in state.items() if ids or not _is_secret(name, value)}
    if people:
        told["expires"] = left(state)
    return told


def columns(states: Iterable[State], *, ids: bool) -> tuple[Sequence[str], list[Sequence[object]]]:
    """Return head and rows of the table of tickets."""
    head = ["TRANSFER", "OPS", "SIZE", "DONE", "RATE", "IDLE", "EXPIRES", *(["ID"] if ids else [])]
    rows: list[Sequence[object]] = [
        [
            state["transfer"],
            ",".join(state["ops"]) or "-",
            human(state["size"]),
            human(done(state)),
            rate(state),
            duration(state["idle_time"]),
            left(state),
            *([state["uuid"]] if ids else []),
        ]
        for state in states
    ]
    return head, rows


def done(state: State) -> int:
    """Return the bytes of progress, each counted once; for a ticket with both operations, all read, written, zeroed."""
    if "transferred" in state:
        return int(state["transferred"])
    return int(state["read"] + state["written"] + sum(state["zeroed"].values()))


def rate(state: State) -> str:
    """Return the bytes per second as text."""
    return f"{human(state['bytes_per_second'])}/s" if state["bytes_per_second"] else "-"


def left(state: State) -> str:
    """Return the time until a ticket expires as text. `expires` is a time of the host's monotonic clock."""
    if state["canceled"]:
        return "removed"
    seconds = state["expires"] - time.monotonic()
    return f"in {duration(seconds)}" if seconds > 0 else f"expired {duration(-seconds)} ago"


def _is_secret(name: str, value: object) -> bool:
    return name == "uuid" or (name == "url" and not str(value).startswith("file://"))
