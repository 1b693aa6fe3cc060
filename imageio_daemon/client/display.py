# SPDX-License-Identifier: Apache-2.0
"""The display of a transfer: a bar on a terminal or lines of JSON, and a summary at the end."""

import json
import sys
import time
from typing import TextIO

from .transfer.progress import Progress

WIDTH = 30
#: Control characters that clear the bar before another line (ECMA-48 EL).
CLEAR_LINE = "\r\033[K"
#: Seconds between two lines of JSON.
JSON_INTERVAL = 1.0


class Display:
    """What is shown during and after a transfer. The base class shows nothing."""

    def update(self, progress: Progress) -> None:
        """Show the progress."""

    def finish(self, verb: str, progress: Progress, **details: object) -> None:
        """Show the result."""

    def abandon(self) -> None:
        """End the display before an error message."""


class Text(Display):
    """A bar if the stream is a terminal, and a summary."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()

    def update(self, progress: Progress) -> None:
        """Draw the bar."""
        if not self._terminal:
            return
        share = progress.done / progress.total if progress.total else 1.0
        bar = ("#" * int(share * WIDTH)).ljust(WIDTH)
        left = f", {duration(progress.left)} left" if progress.left is not None else ""
        self._stream.write(f"\r[{bar}] {share:4.0%} {human(progress.rate)}/s: {parts(progress)}{left}\033[K")
        self._stream.flush()

    def finish(self, verb: str, progress: Progress, **details: object) -> None:
        """Replace the bar by a summary."""
        if self._terminal:
            self._stream.write(CLEAR_LINE)
        print(
            f"{verb} {human(progress.total or 0)} in {progress.elapsed:.2f} s: "
            f"{human(progress.data)} of data at {human(progress.rate)}/s, {human(progress.zero)} of zeros"
            + (f", {human(progress.skipped)} skipped" if progress.skipped else ""),
            file=self._stream,
        )
        for name, value in details.items():
            if value is not None:
                print(f"{name.replace('_', ' ')}: {value}", file=self._stream)

    def abandon(self) -> None:
        """End the line of the bar."""
        if self._terminal:
            self._stream.write("\n")


class Json(Display):
    """A JSON object on each line: `progress` every second, then `result`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = time.monotonic() + JSON_INTERVAL

    def update(self, progress: Progress) -> None:
        """Write a line if JSON_INTERVAL has passed."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + JSON_INTERVAL
            self._write("progress", progress)

    def finish(self, verb: str, progress: Progress, **details: object) -> None:
        """Write the result."""
        self._write("result", progress, **details)

    def _write(self, event: str, progress: Progress, **details: object) -> None:
        numbers = {
            "total": progress.total,
            "data": progress.data,
            "zero": progress.zero,
            "skipped": progress.skipped,
            "elapsed": round(progress.elapsed, 3),
        }
        print(json.dumps({"event": event, **numbers, **details}), file=self._stream, flush=True)


def display(*, as_json: bool, quiet: bool) -> Display:
    """Return the display for the options of a command."""
    if as_json:
        return Json(sys.stdout)
    return Display() if quiet else Text(sys.stderr)


def parts(progress: Progress) -> str:
    """Return the bytes of data, zeros and skipped ranges as text."""
    return f"{human(progress.data)} data, {human(progress.zero)} zero, {human(progress.skipped)} skipped"


def human(size: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration(seconds: float) -> str:
    """Format a time as minutes and seconds, or from one hour on as hours and minutes."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60}:{whole % 60:02}"
