# SPDX-License-Identifier: Apache-2.0
"""The bar of a transfer fits the terminal, however wide it is."""

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator

import pytest

from imageio_daemon.client.display import Text
from imageio_daemon.client.transfer.progress import Phase, Progress
from imageio_daemon.units import GiB, MiB

HALF = Progress(total=8 * GiB, data=3 * GiB, zero=512 * MiB, skipped=512 * MiB, rate=100.0 * MiB, elapsed=40.0)


class Terminal:
    """A terminal, and what a display has written to it."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w")

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def drawn(self, progress: Progress) -> str:
        """Return the line that is drawn, without the characters of control."""
        Text(self.stream).update(progress)
        written = os.read(self._master, 4096).decode()
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
        2**62, 2**61, 2**61, 2**61, 2**61, rate=2.0**60, elapsed=1e6, phase=phase, checked=2**60, to_check=2**62
    )
    for progress in (Progress(phase=phase), HALF, longest):
        assert len(terminal.drawn(progress)) < columns


def test_narrow_terminal_has_share_rate_and_time_left(terminal: Terminal) -> None:
    terminal.resize(40)
    assert terminal.drawn(HALF) == "[####     ]  50% 100.0 MiB/s, 0:40 left"


def test_wide_terminal_has_all(terminal: Terminal) -> None:
    terminal.resize(200)
    bar = "#" * 15 + " " * 15
    parts = "3.0 GiB data, 512.0 MiB zero, 512.0 MiB skipped"
    assert terminal.drawn(HALF) == f"[{bar}]  50% 100.0 MiB/s: {parts}, 0:40 left"


def test_new_width_counts_at_once(terminal: Terminal) -> None:
    terminal.resize(200)
    wide = terminal.drawn(HALF)
    terminal.resize(40)
    assert len(terminal.drawn(HALF)) < 40 < len(wide)
