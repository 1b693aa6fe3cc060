# SPDX-License-Identifier: Apache-2.0
"""What the command prints: tables and texts for people, JSON lines for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence


def json_line(document: Mapping[str, object]) -> None:
    """Print an object on one line."""
    print(json.dumps(document), flush=True)


def pairs(document: Mapping[str, object]) -> None:
    """Print a document for people, a line for each key."""
    for name, value in document.items():
        print(printable(f"{name}: {value if isinstance(value, str) else json.dumps(value)}"))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> list[str]:
    """Return the lines of a table. The first `left` columns are aligned to the left, the others to the right."""
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [
        (cell.ljust(width) if number < left else cell.rjust(width) for number, (cell, width) in enumerate(row_widths))
        for row_widths in (list(zip(row, widths, strict=True)) for row in cells)
    ]
    return ["  ".join(row).rstrip() for row in aligned]


def printable(text: str) -> str:
    """Escape what could change the terminal: names are chosen by other programs."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
