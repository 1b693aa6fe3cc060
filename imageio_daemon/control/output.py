# SPDX-License-Identifier: Apache-2.0
"""What the command prints: tables and texts for people, JSON lines for programs."""

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from unicodedata import combining, east_asian_width

from ..commands.printable import printable as printable  # noqa: PLC0414 - what is printed passes here
from ..commands.printable import quoted as quoted  # noqa: PLC0414

#: Between two columns of a table; where a name was cut; columns that a name has at least.
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
    """Return the columns of the terminal that standard output is; None: it is none, and lines may be of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: Collection[str] = (),
    width: int | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table. The first column and those that `left` names are aligned to the left, others right.

    width: columns of the terminal; None: any. If it is too narrow, the columns of `spare` are left out, first ones
    first, and then the texts of the first column are cut in the middle.
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
    """Return a text of at most so many columns: its beginning and its end, where names differ."""
    if _width(text) <= most:
        return text
    kept = list(text)
    while _width("".join(kept)) > most - 1:
        del kept[len(kept) // 2]
    return "".join([*kept[: (len(kept) + 1) // 2], CUT, *kept[(len(kept) + 1) // 2 :]])


def _width(text: str) -> int:
    """Return the columns of a text on a terminal (Unicode Standard Annex 11; combining characters have none)."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
