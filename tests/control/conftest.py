# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of imageioctl."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import Result
from tests.support.daemon import Certificates, Daemon

TIMEOUT = 60.0
PROGRAM = (sys.executable, "-m", "imageio_daemon.control.cli")


def run(*arguments: str | Path, stdin: str = "") -> Result:
    """Run the command to its end."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], check=False, input=stdin, capture_output=True, text=True, timeout=TIMEOUT
    )
    return Result("imageioctl", done.returncode, done.stdout, done.stderr)


def run_on_terminal(*arguments: str | Path, answer: str) -> Result:
    """Run the command with a terminal as standard input, on which somebody types an answer."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "rb", buffering=0) as terminal, os.fdopen(master, "wb", buffering=0) as keyboard:
        keyboard.write(f"{answer}\n".encode())
        done = subprocess.run(
            [*PROGRAM, *map(str, arguments)],
            check=False,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    return Result("imageioctl", done.returncode, done.stdout, done.stderr)


#: Runs `imageioctl WORDS… ARGUMENTS…` on the socket of the daemon under test.
Ctl = Callable[..., Result]


@pytest.fixture(scope="session")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """One daemon as it comes: its two lanes are others' concern."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture
def ctl(daemon: Daemon) -> Ctl:
    """Run the command on the socket of the daemon."""

    def run_there(*arguments: str | Path, stdin: str = "") -> Result:
        return run(*arguments, "--socket", daemon.control_socket, stdin=stdin)

    return run_there


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of 1 MiB."""
    path = tmp_path / "image"
    path.write_bytes(bytes(1024**2))
    return path
