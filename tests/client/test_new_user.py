# SPDX-License-Identifier: Apache-2.0
"""An upload over a slow link that everything happens to, as a user has it: the same command again and again."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.networks import SERVER_ADDRESS, SlowNetwork, missing
from tests.client.programs import PROGRAM, TIMEOUT, ended, start
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import KiB, MiB, pattern

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SIZE = 64 * MiB
#: Seconds without a network. With IMAGEIO_TEST_LONG=1 the client gives its connections up, and makes new ones.
ABSENCE = 75 if os.environ.get("IMAGEIO_TEST_LONG") else 3


@pytest.fixture
def network() -> Iterator[SlowNetwork]:
    with SlowNetwork() as network:
        yield network


@pytest.fixture
def daemon(network: SlowNetwork, certificates: Certificates, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on the other host, as the service is: with a state directory."""
    with network.daemon(certificates, tmp_path, {"daemon": {"state_dir": STATE}}) as daemon:
        yield daemon


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An image with holes and zeros."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as f:
        f.truncate(SIZE)
        for number in range(10):
            f.seek(number * 6 * MiB + 300 * KiB)
            f.write(pattern(4 * MiB, number) + bytes(MiB))
    return path


class User:
    """Who gives one command."""

    def __init__(self, network: SlowNetwork, daemon: Daemon, disk: Path, target: Path) -> None:
        self.disk = disk
        self.target = target
        ticket = daemon.add_ticket(target, SIZE, sparse=True, ops=["read", "write"])
        self._command = ("upload", "--json", "--cafile", daemon.cafile, disk, daemon.url(ticket, host=SERVER_ADDRESS))
        self._program = (*network.on_client, *PROGRAM)

    def upload(self) -> "Running":
        """Give the command."""
        return Running(start(*self._command, program=self._program))


class Running:
    """The command while it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def until(self, happened: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a progress."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told: dict[str, Any] = json.loads(line)
            if happened(told):
                return told
        raise AssertionError(f"the command has ended: {ended(self._process)}")

    def interrupt(self) -> str:
        """Press Ctrl-C and return what the command says."""
        self._process.send_signal(signal.SIGINT)
        result = ended(self._process)
        assert result.status == 130, result
        return result.err

    def result(self) -> dict[str, Any]:
        """Wait for the end, and return the last line."""
        result = ended(self._process, timeout=TIMEOUT + ABSENCE)
        assert result.status == 0, result
        told: dict[str, Any] = json.loads(result.out.splitlines()[-1])
        return told


@pytest.fixture
def user(network: SlowNetwork, daemon: Daemon, disk: Path, tmp_path: Path) -> User:
    target = tmp_path / "target.raw"
    target.touch()
    os.truncate(target, SIZE)
    return User(network, daemon, disk, target)


def test_same_command_completes_an_upload_that_everything_happens_to(
    network: SlowNetwork, daemon: Daemon, user: User
) -> None:
    first = user.upload()
    first.until(lambda told: told["data"] > 6 * MiB)
    assert "are on stable storage, the same command continues" in first.interrupt()

    second = user.upload()
    before = second.until(lambda told: told["data"] > 3 * MiB)
    assert before["resumed"] > 5 * MiB
    network.take_away()
    assert "the same command continues" in second.interrupt()
    network.bring_back()

    third = user.upload()
    again = third.until(lambda told: told["data"] > 3 * MiB)
    assert again["resumed"] >= before["resumed"]
    daemon.stop()
    daemon.restart()
    done = third.result()
    assert done["resumed"] == again["resumed"]
    assert user.target.read_bytes() == user.disk.read_bytes()


@pytest.mark.timeout(4 * TIMEOUT)
def test_upload_waits_for_a_network_that_comes_back(network: SlowNetwork, user: User) -> None:
    upload = user.upload()
    upload.until(lambda told: told["data"] > 4 * MiB)
    network.take_away()
    threading.Timer(ABSENCE, network.bring_back).start()
    upload.result()
    assert user.target.read_bytes() == user.disk.read_bytes()
