# SPDX-License-Identifier: Apache-2.0
"""Programs that upload and download while the daemon is restarted, and what they leave."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.client.programs import PROGRAM
from tests.support.daemon import Daemon
from tests.support.images import MiB

#: Bytes of each image, and bytes per second of each ticket until the daemon has been restarted: none can end before.
SIZE = 48 * MiB
RATE = MiB // 4
#: Seconds that a program may take, with the restart.
TIMEOUT = 120.0


@dataclass(frozen=True)
class Target:
    """The image of a ticket at a daemon, and the file of the other side."""

    daemon: Daemon
    ticket: str
    nbd: Path
    local: Path

    @property
    def url(self) -> str:
        return self.daemon.url(self.ticket)

    @property
    def export(self) -> str:
        """The options of qemu for the export on the unix socket."""
        where = f"server.type=unix,server.path={self.nbd}"
        return f"driver=nbd,{where},export={self.ticket},reconnect-delay=60,open-timeout=60"


Command = Callable[[Target], Sequence[str]]


@dataclass(frozen=True)
class Program:
    """How a program uploads and downloads."""

    upload: Command
    download: Command


def _curl(target: Target, *more: str) -> list[str]:
    retries = ("--retry", "20", "--retry-all-errors", "--retry-delay", "1", "--retry-connrefused")
    secure = ("--cacert", str(target.daemon.cafile))
    return ["curl", "-sS", "--fail", *retries, *secure, *more]


def _over_https(target: Target) -> tuple[str, ...]:
    return (target.url,)


def _over_unix(target: Target) -> tuple[str, ...]:
    return ("--unix-socket", target.daemon.local_socket, f"http://localhost/images/{target.ticket}")


def _convert(*arguments: str) -> list[str]:
    return ["qemu-img", "convert", "-W", *arguments]


def _client(command: str, target: Target, *arguments: str) -> list[str]:
    options = ("-q", "--connections", "1", "--retry-for", "60", "--cafile", str(target.daemon.cafile))
    return [*PROGRAM, command, *options, *arguments]


PROGRAMS = {
    "curl over HTTPS": Program(
        lambda t: _curl(t, "-T", str(t.local), *_over_https(t)),
        lambda t: _curl(t, "-o", str(t.local), *_over_https(t)),
    ),
    "curl over the unix socket": Program(
        lambda t: _curl(t, "-T", str(t.local), *_over_unix(t)),
        lambda t: _curl(t, "-o", str(t.local), *_over_unix(t)),
    ),
    "qemu over NBD": Program(
        lambda t: _convert("-n", "-f", "raw", "--target-image-opts", str(t.local), t.export),
        lambda t: _convert("--image-opts", t.export, "-O", "raw", str(t.local)),
    ),
    "imageio-client": Program(
        lambda t: _client("upload", t, str(t.local), t.url),
        lambda t: _client("download", t, t.url, str(t.local)),
    ),
}


class Running:
    """A program that runs. Its output goes to a file."""

    def __init__(self, name: str, command: Sequence[str], output: Path) -> None:
        self._name = name
        self._output = output
        self._file: IO[bytes] = output.open("wb")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._file, stderr=self._file)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def succeeds(self) -> None:
        """Wait for its end, and fail unless it has succeeded."""
        try:
            status = self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._name} does not end:\n{self._output.read_text()}") from None
        assert status == 0, f"{self._name} ended with status {status}:\n{self._output.read_text()}"

    def close(self) -> None:
        """End it, if it has not ended."""
        if not self.ended:
            self._process.kill()
            self._process.wait()
        self._file.close()
