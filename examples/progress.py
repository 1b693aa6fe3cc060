# SPDX-License-Identifier: Apache-2.0
"""Show how far a transfer is: a bar on a terminal, and one line at the end anywhere."""

import sys
import time

WIDTH = 40
INTERVAL = 0.1  # seconds between two drawings: smooth enough for the eye, and too rare to cost anything


class Progress:
    """Count the bytes of one transfer of `total` bytes and draw them on standard error."""

    def __init__(self, verb: str, total: int) -> None:
        self._verb = verb
        self._total = total
        self._data = 0
        self._zero = 0
        self._started = time.monotonic()
        self._drawn = self._started - INTERVAL
        self._terminal = sys.stderr.isatty()

    def add_data(self, length: int) -> None:
        """Count bytes that went over the wire."""
        self._data += length
        self._draw()

    def add_zero(self, length: int) -> None:
        """Count bytes that are zeros, of which only the length went over the wire."""
        self._zero += length
        self._draw()

    def finish(self) -> None:
        """Replace the bar by a summary."""
        elapsed = max(time.monotonic() - self._started, 0.001)
        if self._terminal:
            sys.stderr.write("\r\033[K")
        print(
            f"{self._verb} {human(self._total)} in {elapsed:.2f} s: "
            f"{human(self._data)} of data at {human(self._data / elapsed)}/s, {human(self._zero)} of zeros",
            file=sys.stderr,
        )

    def abandon(self) -> None:
        """Leave the bar as it is, so that an error message starts on a new line."""
        if self._terminal:
            sys.stderr.write("\n")

    def _draw(self) -> None:
        now = time.monotonic()
        if not self._terminal or now - self._drawn < INTERVAL:
            return
        self._drawn = now
        done = self._data + self._zero
        share = done / self._total if self._total else 1.0
        bar = ("#" * int(share * WIDTH)).ljust(WIDTH)
        rate = self._data / (now - self._started)
        sys.stderr.write(f"\r[{bar}] {share:4.0%}  {human(done)}  {human(rate)}/s\033[K")
        sys.stderr.flush()


def human(size: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
