# SPDX-License-Identifier: Apache-2.0
"""The bar of a transfer fits the terminal, however wide it is; elsewhere there are lines."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from dataclasses import replace

import pytest

from imageio_daemon.client.display import LINE_INTERVAL, SKIPPED, Json, Text
from imageio_daemon.client.transfer.progress import Phase, Progress
from imageio_daemon.units import GiB, MiB

HALF = Progress(total=8 * GiB, data=3 * GiB, zero=512 * MiB, skipped=512 * MiB, rate=100.0 * MiB, to_move=4000 * MiB)


class Terminal:
    """A terminal, and what a display has written to it."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w")

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def written(self) -> str:
        """Return what was written."""
        self.stream.flush()
        return os.read(self._master, 4096).decode()

    def drawn(self, progress: Progress) -> str:
        """Return the line that is drawn, without the characters of control."""
        Text(self.stream).update(progress)
        written = self.written()
        found = re.fullmatch(r"\r(.*)\033\[K", written)
        assert found, written
        return found[1]

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.mark.parametrize("columns", [1, 10, 20, 40, 80, 200])
@pytest.mark.parametrize("phase", Phase)
def test_line_fits(terminal: Terminal, columns: int, phase: Phase) -> None:
    terminal.resize(columns)
    longest = Progress(
        2**62, 2**61, 2**61, 2**61, 2**61, rate=2.0**60, phase=phase, checked=2**60, to_check=2**62, to_move=2**62
    )
    waiting = replace(longest, reason="x" * 100, retries=10**6, idle=9.0)
    for progress in (Progress(phase=phase), HALF, longest, waiting):
        assert len(terminal.drawn(progress)) < columns


def test_narrow_terminal_has_share_rate_and_time_left(terminal: Terminal) -> None:
    terminal.resize(40)
    assert terminal.drawn(HALF) == "[###    ]  50% 100.0 MiB/s, 0:40 left"


def test_wide_terminal_has_all(terminal: Terminal) -> None:
    terminal.resize(200)
    bar = "#" * 15 + " " * 15
    parts = "3.0 GiB data, 512.0 MiB zeros, 512.0 MiB already zero"
    assert terminal.drawn(HALF) == f"[{bar}]  50% 100.0 MiB/s: {parts}, 0:40 left"


def test_reading_has_a_share_and_its_bytes(terminal: Terminal) -> None:
    terminal.resize(40)
    reading = Progress(phase=Phase.READING, checked=GiB, to_check=4 * GiB)
    assert terminal.drawn(reading) == "[###           ]  25% reading 1.0 GiB"
    assert terminal.drawn(replace(reading, to_check=None)).endswith("  0% reading 1.0 GiB")


def test_new_width_counts_at_once(terminal: Terminal) -> None:
    terminal.resize(200)
    wide = terminal.drawn(HALF)
    terminal.resize(40)
    assert len(terminal.drawn(HALF)) < 40 < len(wide)


def test_counters_that_are_zero_are_not_shown(terminal: Terminal) -> None:
    terminal.resize(200)
    assert terminal.drawn(replace(HALF, zero=0, skipped=0)).endswith("% 100.0 MiB/s: 3.0 GiB data, 0:40 left")


def test_what_is_read_again_has_no_rate(terminal: Terminal) -> None:
    """So does an upload that goes on and is verified: data does not move, and does not stand still."""
    terminal.resize(80)
    again = Progress(total=8 * GiB, resumed=2 * GiB, idle=0.2)
    assert terminal.drawn(again).endswith("25% 2.0 GiB from before")
    assert terminal.drawn(replace(again, idle=2.0)).endswith("25% 0 B/s: 2.0 GiB from before")


def test_transfer_that_ends_early_steps_not_back(terminal: Terminal) -> None:
    """The requests that are interrupted are taken back."""
    display = Text(terminal.stream)
    display.update(HALF)
    display.update(replace(HALF, data=1 * GiB, ending=True))
    display.abandon()
    assert re.findall(r"\d+%", terminal.written()) == ["50%"]


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        (Progress(total=0), "uploaded 0 B in 0.00 s"),
        (Progress(total=MiB, zero=MiB), "uploaded 1.0 MiB in 0.00 s: 1.0 MiB of zeros"),
        (Progress(total=MiB, skipped=MiB), "uploaded 1.0 MiB in 0.00 s: 1.0 MiB already zero"),
        (Progress(total=MiB, resumed=MiB), "uploaded 1.0 MiB in 0.00 s: 1.0 MiB were there from before"),
        (Progress(total=MiB, data=MiB, elapsed=2), "uploaded 1.0 MiB in 2.00 s: 1.0 MiB of data at 512.0 KiB/s"),
    ],
)
def test_summary_has_what_there_was(progress: Progress, told: str) -> None:
    stream = io.StringIO()
    Text(stream).finish("uploaded", progress)
    assert stream.getvalue() == f"{told}\n"


def test_what_a_download_leaves_is_unchanged() -> None:
    stream = io.StringIO()
    Text(stream, SKIPPED["download"]).finish("downloaded", Progress(total=2 * MiB, zero=MiB, skipped=MiB))
    assert stream.getvalue() == "downloaded 2.0 MiB in 0.00 s: 1.0 MiB of zeros, 1.0 MiB unchanged\n"


WAITING = replace(HALF, retries=3, reason="the connection to host:1 broke: reset", idle=2.0)


def test_bar_shows_what_is_waited_for(terminal: Terminal) -> None:
    terminal.resize(80)
    assert terminal.drawn(WAITING).endswith("50% waiting, the connection to host:1 broke: reset")
    terminal.resize(40)
    assert terminal.drawn(WAITING).endswith("50% waiting, 3 retries")


def test_bar_shows_what_moves_beside_a_connection_that_waits(terminal: Terminal) -> None:
    terminal.resize(80)
    assert "MiB/s" in terminal.drawn(replace(WAITING, idle=0.1))


def test_nothing_is_coloured(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR asks for what is so without it; drawn() knows no other control than that of the line."""
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        for progress in (HALF, WAITING):
            assert "\033" not in terminal.drawn(progress)


def test_simple_terminal_gets_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    Text(terminal.stream).update(HALF)
    Text(terminal.stream).finish("uploaded", HALF)
    assert terminal.written().startswith("uploaded")


# Off a terminal


class Clock:
    """Time that passes as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_line_comes_every_10_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stream = io.StringIO()
    display = Text(stream)
    for second in range(35):
        clock.now = float(second)
        display.update(HALF if second < 25 else WAITING)
    moves = "imageio-client: 50% 100.0 MiB/s: 3.0 GiB data, 512.0 MiB zeros, 512.0 MiB already zero, 0:40 left"
    waits = "imageio-client: 50% waiting, the connection to host:1 broke: reset"
    assert LINE_INTERVAL == 10
    assert stream.getvalue().splitlines() == [moves, moves, waits]


def test_json_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stream = io.StringIO()
    display = Json(stream)
    clock.now = 1.0
    display.update(WAITING)
    told = json.loads(stream.getvalue())
    assert (told["to_move"], told["seconds_left"], told["bytes_per_second"]) == (4000 * MiB, 40, 100 * MiB)
    assert (told["retries"], told["reason"]) == (3, WAITING.reason)
