# SPDX-License-Identifier: Apache-2.0
"""The daemon is restarted in the middle of 8 uploads and 8 downloads: all complete, and every byte is right.

Two restarts each time, 100 with IMAGEIO_TEST_LONG=1; half of them are crashes.
"""

import filecmp
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.soak.restarts import PROGRAMS, RATE, SIZE, Program, Running, Target
from tests.support.daemon import Certificates, Daemon
from tests.support.images import pattern
from tests.support.manager import Manager
from tests.support.polling import eventually

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
RESTARTS = 100 if LONG else 2
#: Uploads, and downloads, of each program.
EACH = 2


@pytest.fixture
def daemon(certificates: Certificates, tmp_path: Path) -> Iterator[Daemon]:
    with Manager() as manager:
        config = {
            "daemon": {"state_dir": tmp_path / "state", "shutdown_timeout": 1},
            "nbd": {"enable": True, "port": -1, "socket": tmp_path / "nbd"},
        }
        with Daemon(certificates, config, manager=manager) as made:
            yield made


class Round:
    """8 uploads and 8 downloads around one restart."""

    def __init__(self, daemon: Daemon, directory: Path, cleanup: ExitStack) -> None:
        self._daemon = daemon
        self._directory = directory
        self._cleanup = cleanup
        self.running: list[Running] = []
        self.tickets: list[str] = []
        self.pairs: list[tuple[Path, Path]] = []

    def start(self) -> None:
        """Start all programs, and wait until each has moved bytes."""
        for name, program in PROGRAMS.items():
            for number in range(EACH):
                self._start(f"{name} {number}", program, uploads=True)
                self._start(f"{name} {number}", program, uploads=False)
        eventually(lambda: all(self._moved()), "all move bytes", timeout=60)

    @property
    def under_way(self) -> bool:
        """Whether no program has ended."""
        return not any(running.ended for running in self.running)

    def finish(self) -> None:
        """Lift the limits, wait for all programs, and compare what they have moved."""
        unlimited = json.dumps({"rate": 0}).encode()
        for ticket_id in self.tickets:
            assert self._daemon.control("PATCH", f"/tickets/{ticket_id}", unlimited).status == 200
        for running in self.running:
            running.succeeds()
        for image, local in self.pairs:
            assert filecmp.cmp(image, local, shallow=False), f"{image} and {local} differ"
        for ticket_id in self.tickets:
            self._daemon.remove(ticket_id)

    def _start(self, name: str, program: Program, *, uploads: bool) -> None:
        number = len(self.pairs)
        image, local = self._directory / f"image-{number}", self._directory / f"local-{number}"
        source = self._source()
        if uploads:
            local.symlink_to(source)
            image.touch()
            os.truncate(image, SIZE)
        else:
            image.symlink_to(source)
        ticket_id = self._daemon.add_ticket(image, SIZE, ops=["write" if uploads else "read"], rate=RATE)
        target = Target(self._daemon, ticket_id, self._directory.parent / "nbd", local)
        command = (program.upload if uploads else program.download)(target)
        running = Running(name, command, self._directory / f"output-{number}")
        self._cleanup.callback(running.close)
        self.running.append(running)
        self.tickets.append(ticket_id)
        self.pairs.append((image, local))

    def _source(self) -> Path:
        path = self._directory.parent / "source"
        if not path.exists():
            path.write_bytes(pattern(SIZE))
        return path

    def _moved(self) -> list[bool]:
        return [self._daemon.status(ticket_id)["transferred"] > 0 for ticket_id in self.tickets]


@pytest.mark.timeout(3600)
def test_restart_in_the_middle_of_transfers_harms_none(daemon: Daemon, tmp_path: Path) -> None:
    for number in range(RESTARTS):
        directory = tmp_path / f"round-{number}"
        directory.mkdir()
        with ExitStack() as cleanup:
            round_ = Round(daemon, directory, cleanup)
            round_.start()
            assert round_.under_way
            if number % 2:
                daemon.kill()
            else:
                daemon.stop()
            daemon.restart()
            round_.finish()
        for path in directory.iterdir():
            path.unlink()
