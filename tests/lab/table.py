# SPDX-License-Identifier: Apache-2.0
"""A table of what came of each check, as docs/lab.md has them. What could not be tried is in it, too."""

from pathlib import Path


class Table:
    """Rows of words. The file is written anew with each word, so that it is there if the run is ended."""

    def __init__(self, path: Path, corner: str) -> None:
        self._path = path
        self._corner = corner
        self._rows: dict[str, dict[str, str]] = {}

    def set(self, row: str, column: str, word: str) -> None:
        """Note what came of a check."""
        self._rows.setdefault(row, {})[column] = word.replace("|", "/")
        columns = list(dict.fromkeys(column for words in self._rows.values() for column in words))
        lines = [[self._corner, *columns], ["---"] * (len(columns) + 1)]
        lines += [[name, *(words.get(column, "") for column in columns)] for name, words in self._rows.items()]
        self._path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
