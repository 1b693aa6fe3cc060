# SPDX-License-Identifier: Apache-2.0
"""The display of a transfer: a bar on a terminal, lines elsewhere, or lines of JSON, and a summary at the end.

There are no colours, so NO_COLOR has no effect. The log has the reasons why requests are sent again.
"""

import json
import os
import sys
import time
from typing import TextIO

from ..commands.amounts import duration, human
from .transfer.progress import Phase, Progress

#: Characters of the longest and of the shortest bar.
WIDTH, LEAST_WIDTH = 30, 5
DEFAULT_COLUMNS = 80
#: Columns that stay free. `^C`, which the terminal shows for Ctrl-C, would wrap the line, and so would the last column.
FREE = 3
#: Control characters that clear the bar before another line (ECMA-48 EL).
CLEAR_LINE = "\r\033[K"
#: Seconds between two lines off a terminal, and between two of JSON.
LINE_INTERVAL = 10.0
JSON_INTERVAL = 1.0
#: Seconds without progress until the bar shows why.
IDLE = 1.0
#: Why bytes were neither transferred nor zeroed, for each command.
SKIPPED = {"upload": "already zero", "copy": "already zero", "download": "unchanged"}


class Display:
    """The display during and after a transfer. This base class shows nothing."""

    def update(self, progress: Progress) -> None:
        """Show the progress."""

    def finish(self, verb: str, progress: Progress, **details: object) -> None:
        """Show the result."""

    def abandon(self) -> None:
        """End the display before an error message."""


class Text(Display):
    """A bar if the stream is a terminal, otherwise a line every LINE_INTERVAL; and a summary at the end.

    `skipped` says why bytes were neither transferred nor zeroed.
    """

    def __init__(self, stream: TextIO, skipped: str = SKIPPED["upload"]) -> None:
        self._stream = stream
        self._skipped = skipped
        self._terminal = draws(stream)
        self._next = time.monotonic() + LINE_INTERVAL

    def update(self, progress: Progress) -> None:
        """Draw the bar, or write a line if LINE_INTERVAL has passed.

        Show nothing more of a transfer that ends early: its cancelled requests would look like steps backwards.
        """
        if progress.ending:
            return
        if self._terminal:
            self._draw(share(progress), *texts(progress, self._skipped))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_INTERVAL
            text = texts(progress, self._skipped)[0]
            print(f"imageio-client: {share(progress):.0%} {text}", file=self._stream, flush=True)

    def _draw(self, done: float, *texts: str) -> None:
        """Draw a bar with the first text that fits. A wrapped line could not be drawn over."""
        # Each time, because windows change. Terminals that do not know their width say 0.
        columns = _columns(self._stream) - FREE
        percent = f"{done:4.0%} "
        fitting = (text for text in texts if len(percent) + len(text) + len("[] ") + LEAST_WIDTH <= columns)
        line = percent + next(fitting, texts[-1])
        width = min(WIDTH, columns - len(line) - len("[] "))
        if width >= LEAST_WIDTH:
            line = f"[{('#' * int(done * width)).ljust(width)}] {line}"
        self._stream.write(f"\r{line[: max(columns, 0)]}\033[K")
        self._stream.flush()

    def finish(self, verb: str, progress: Progress, **details: object) -> None:
        """Replace the bar by a summary."""
        if self._terminal:
            self._stream.write(CLEAR_LINE)
        rate = f" at {human(progress.average)}/s"
        told = parts(progress, f"of data{rate}", "of zeros", self._skipped, "were there from before")
        summary = f"{verb} {human(progress.total or 0)} in {progress.elapsed:.2f} s"
        print(f"{summary}: {told}" if told else summary, file=self._stream)
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
        numbers: dict[str, object] = {
            "phase": progress.phase,
            "total": progress.total,
            "data": progress.data,
            "zero": progress.zero,
            "skipped": progress.skipped,
            "resumed": progress.resumed,
            "durable": progress.durable,
            "bytes_per_second": round(progress.average if event == "result" else progress.rate),
            "to_move": progress.to_move,
            "seconds_left": None if progress.left is None else round(progress.left, 1),
            "retries": progress.retries,
            "reason": progress.reason,
            "checked": progress.checked,
            "elapsed": round(progress.elapsed, 3),
        }
        print(json.dumps({"event": event, **numbers, **details}), file=self._stream, flush=True)


def display(command: str, *, as_json: bool, quiet: bool) -> Display:
    """Return the display for the options of a command."""
    if as_json:
        return Json(sys.stdout)
    return Display() if quiet else Text(sys.stderr, SKIPPED.get(command, ""))


def draws(stream: TextIO) -> bool:
    """Return whether a line can be drawn over: on a terminal that is not too simple for it (terminfo(5), dumb)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _columns(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns or DEFAULT_COLUMNS
    except OSError:  # it has gone
        return DEFAULT_COLUMNS


def share(progress: Progress) -> float:
    """Return how much of the phase is done, from 0 to 1."""
    done, of = progress.done, progress.total
    if progress.phase is not Phase.TRANSFERRING:
        done, of = progress.checked, progress.to_check
    return done / of if of else float(progress.phase is not Phase.READING)


def texts(progress: Progress, skipped: str) -> list[str]:
    """Return texts on the progress, from the longest to the shortest. `skipped` is as for Text."""
    if progress.reason and progress.idle >= IDLE:
        return [f"waiting, {progress.reason}", f"waiting, {progress.retries} retries", "waiting"]
    if progress.phase is not Phase.TRANSFERRING:
        is_counted = progress.to_check or progress.phase is Phase.READING
        return [f"{progress.phase} {human(progress.checked)}" if is_counted else progress.phase]
    amounts = parts(progress, "data", "zeros", skipped, "from before")
    if amounts and not progress.rate and progress.idle < IDLE:
        return [amounts]  # only zeros, or bytes that are read again, move now: there is no rate, but progress
    rate = f"{human(progress.rate)}/s"
    left = f", {duration(progress.left)} left" if progress.left is not None else ""
    return [f"{rate}: {amounts}{left}" if amounts else f"{rate}{left}", f"{rate}{left}", rate]


def parts(progress: Progress, *words: str) -> str:
    """Return the bytes of data, zeros, skipped ranges and of an earlier transfer, each with its words, if any."""
    amounts = (progress.data, progress.zero, progress.skipped, progress.resumed)
    return ", ".join(f"{human(amount)} {what}" for amount, what in zip(amounts, words, strict=True) if amount)
