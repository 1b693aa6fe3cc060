# SPDX-License-Identifier: Apache-2.0
"""Run the command imageio-client as a user does."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.commands import Result

TIMEOUT = 60.0
COMMANDS = ("upload", "download", "copy", "info", "extents", "checksum", "verify", "nbd")
PROGRAM = (sys.executable, "-m", "imageio_daemon.client.cli")


def command(*arguments: str | Path) -> list[str]:
    """Return the command line. Servers of tests may have no TLS, which has to be allowed."""
    return [*PROGRAM, *plain_allowed(*arguments)]


def plain_allowed(*arguments: str | Path) -> list[str]:
    """Return arguments, which allow URLs with http:// if there are some, and if these are arguments of the command."""
    given = list(map(str, arguments))
    is_plain = given[:1] != [] and given[0] in COMMANDS and any(text.startswith("http://") for text in given)
    return [*given, "--insecure"] if is_plain else given


def environment() -> dict[str, str]:
    """Return an environment in which only the given authorities are trusted."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}


def run(*arguments: str | Path, stdin: Path | None = None) -> Result:
    """Run the command to its end."""
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL
        done = subprocess.run(
            command(*arguments),
            check=False,
            stdin=source,
            capture_output=True,
            timeout=TIMEOUT,
            env=environment(),
        )
    return Result("imageio-client", done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())


def start(
    *arguments: str | Path, program: tuple[str, ...] = PROGRAM, ignored: bool = False, stdout: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start the command, or another program, where Ctrl-C is not ignored: it is in background jobs of scripts."""
    return subprocess.Popen(
        [
            "env",
            "--ignore-signal=INT" if ignored else "--default-signal=INT,HUP,TERM",
            *program,
            *plain_allowed(*arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def ended(process: subprocess.Popen[str], *, timeout: float = TIMEOUT) -> Result:
    """Wait for what was started."""
    out, err = process.communicate(timeout=timeout)
    return Result("imageio-client", process.returncode, out, err)


def run_on_terminal(*arguments: str | Path) -> Result:
    """Run the command to its end with a terminal to show its progress on."""
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command(*arguments), stdin=subprocess.DEVNULL, stderr=slave, env=environment())
        os.close(slave)
        shown = b""
        # A terminal whose other end is closed gives EIO, not an end of file.
        with contextlib.suppress(OSError):
            while piece := terminal.read(4096):
                shown += piece
        return Result("imageio-client", process.wait(TIMEOUT), "", shown.decode())
