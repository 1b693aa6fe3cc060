# SPDX-License-Identifier: Apache-2.0
"""The daemon and the images that the checks of clients and servers of others have in common: a plugin of pytest."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.images import PATIENCE, MiB, Source, make_source
from tests.lab.table import Table
from tests.support.daemon import Certificates, Daemon, Section

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(os.environ["RESULTS"])
NBD_SOCKET = "/run/nbd"
#: Of images behind NBD servers.
SMALL = 64 * MiB


@dataclass(frozen=True)
class Bench:
    """A daemon with all services, and images."""

    daemon: Daemon
    source: Source
    directory: Path

    @property
    def cafile(self) -> Path:
        return self.daemon.cafile

    @property
    def nbd_port(self) -> int:
        match = self.daemon.log.find(r"listening.*\bservice\W+nbd\b.*\bport\W+(\d+)")
        assert match is not None
        return int(match[1])

    def nbd_uri(self, ticket: str) -> str:
        return f"nbd+unix:///{ticket}?socket={NBD_SOCKET}"

    def new_disk(self, name: str, size: int = SMALL) -> Path:
        disk = self.directory / f"{name}.disk"
        disk.touch()
        os.truncate(disk, size)
        return disk


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("clients")
    # A short path: the name of a socket is limited.
    config: dict[str, Section] = {"nbd": {"enable": True, "port": 0, "socket": NBD_SOCKET}}
    with Daemon(Certificates.make(directory), config) as daemon:
        yield Bench(daemon, make_source(directory), directory)


def table(name: str, corner: str) -> Table:
    """Return the table of a file of checks."""
    return Table(RESULTS / f"{name}.md", corner)


def have(table: Table, program: str, path: Path) -> None:
    """Skip what could not be had."""
    if not path.exists():
        table.set(program, "read", "SKIP: cannot be had here")
        pytest.skip(f"{program} cannot be had here")


def run(*command: object, timeout: float = PATIENCE) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{words[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def wait_for(path: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.1)


def client(bench: Bench, command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "imageio_daemon.client.cli", command, "--quiet", "--no-local", "--retry-for", "5"]
    words += ["--cafile", str(bench.cafile), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
