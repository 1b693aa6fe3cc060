# SPDX-License-Identifier: Apache-2.0
"""Uploads that are interrupted again and again go on, each time with another ticket, under another name and port.

What interrupts them: SIGINT, SIGKILL, a network that is cut, a daemon that is stopped or killed. Every image is right
at the end, and little is sent twice. 4 interruptions, 300 with IMAGEIO_TEST_LONG=1.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.client.programs import ended, start
from tests.client.proxy import Proxy
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import MiB, pattern
from tests.support.polling import eventually

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
#: Runs with a record of the server, and as many without, and the interruptions of each.
SEEDS = 30 if LONG else 1
INTERRUPTIONS = 5 if LONG else 2
SIZE = 96 * MiB
#: Bytes that a connection carries until it is cut or held.
BUDGET = (4 * MiB, 12 * MiB)
CONNECTIONS = 2
#: Bytes that an interruption may cost: on each connection the request under way and what it has sent during a flush.
MOST_LOST = CONNECTIONS * 4 * MiB
#: Bytes per second.
RATE = 10_000_000
HOSTS = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "[::1]": "::1"}
WAYS = ["interrupt", "kill", "cut", "stop daemon", "kill daemon"]

#: The command with short requests, and with a flush after each.
PROGRAM = """\
import sys
from imageio_daemon.client import cli
from imageio_daemon.client.local.source import FileSource
from imageio_daemon.client.transfer import sender
from imageio_daemon.client.transfer.transfer_options import UploadOptions
FileSource.portion, sender.SHORT, UploadOptions.__init__.__kwdefaults__["checkpoint"] = 4 * 1024**2, 0, 0
sys.exit(cli.main())
"""
TIMEOUT = 120.0


@pytest.fixture(params=[True, False], ids=["record", "no record"])
def daemon(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Daemon]:
    """A daemon with a record of what is durable, or without."""
    state = {"state_dir": STATE} if request.param else {}
    with Daemon(certificates, {"daemon": {"shutdown_timeout": 1, **state}}) as made:
        yield made


def random_image(path: Path, choice: random.Random) -> int:
    """Make an image of data, zeros and holes, and return how many bytes are not zero."""
    with path.open("wb") as f:
        f.truncate(SIZE + choice.randrange(4096))
        data = 0
        for start in range(0, SIZE, 12 * MiB):
            f.seek(start + choice.randrange(2 * MiB))
            length = choice.randrange(6 * MiB, 9 * MiB)
            f.write(pattern(length, choice.randrange(1000)) + bytes(choice.randrange(MiB)))
            data += length
    return data


@dataclass
class Campaign:
    """Interrupted uploads of images, one after the other."""

    daemon: Daemon
    directory: Path
    choice: random.Random
    interruptions: int = 0
    uploads: int = 0
    resumed: int = 0
    data: int = 0
    carried: int = 0
    tickets: list[str] = field(default_factory=list)

    def upload(self) -> None:
        """Upload one image, through interruptions."""
        self.uploads += 1
        source, target = (self.directory / f"{name}{self.uploads}" for name in ("source", "target"))
        self.data += random_image(source, self.choice)
        target.write_bytes(b"\xff" * source.stat().st_size)
        while not self._attempt(source, target):
            self.interruptions += 1
        assert source.read_bytes() == target.read_bytes()
        self._remove_tickets(left=0)
        source.unlink()
        target.unlink()

    def _attempt(self, source: Path, target: Path) -> bool:
        """Upload until something interrupts it; return True if nothing did."""
        way, host = self.choice.choice(WAYS), self.choice.choice(list(HOSTS))
        with Proxy(
            self.daemon.port, lambda: self.choice.randrange(*BUDGET), hold=way != "cut", host=HOSTS[host]
        ) as proxy:
            url = f"https://{host}:{proxy.port}/images/{self._ticket(target)}"
            process = start(*self._arguments(source, url), program=(sys.executable, "-c", PROGRAM))
            if way != "cut":
                eventually(
                    lambda: process.poll() is not None or proxy.held.acquire(blocking=False),
                    "the upload is held or ends",
                    timeout=TIMEOUT,
                )
                if process.poll() is None:
                    self._interrupt(process, way)
            result = ended(process, timeout=TIMEOUT)
            self.carried += proxy.carried
        if result.status:
            assert result.status in (4, 128 + signal.SIGINT, -signal.SIGKILL), result
        else:
            self.resumed += json.loads(result.out.splitlines()[-1])["resumed"] > 0
        return result.status == 0

    def _arguments(self, source: Path, url: str) -> list[str | Path]:
        options = ["--no-local", "--retry-for", "0", "--connections", str(CONNECTIONS)]
        return ["upload", "--json", *options, "--cafile", self.daemon.cafile, source, url]

    def _ticket(self, target: Path) -> str:
        """Return a new ticket. Older ones may be there still."""
        self._remove_tickets(left=self.choice.randrange(2))
        self.tickets.append(self.daemon.add_ticket(target, target.stat().st_size))
        return self.tickets[-1]

    def _remove_tickets(self, *, left: int) -> None:
        while len(self.tickets) > left:
            answer = self.daemon.control("DELETE", f"/tickets/{self.tickets.pop(0)}")
            assert answer.status in (204, 404), answer

    def _interrupt(self, process: subprocess.Popen[str], way: str) -> None:
        if way == "interrupt":
            process.send_signal(signal.SIGINT)
        elif way == "kill":
            process.kill()
        else:
            if way == "kill daemon":
                self.daemon.kill()
            else:
                self.daemon.stop()
            self.daemon.restart()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_interrupted_uploads_go_on_with_other_tickets(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    campaign = Campaign(daemon, tmp_path, random.Random(seed))
    while campaign.interruptions < INTERRUPTIONS:
        campaign.upload()
    print(
        f"{campaign.interruptions} interruptions, {campaign.uploads} images, {campaign.resumed} of them continued: "
        f"{campaign.data / MiB:.0f} MiB of data, {campaign.carried / MiB:.0f} MiB over the network"
    )
    assert campaign.carried < 1.02 * campaign.data + campaign.interruptions * MOST_LOST


@pytest.mark.skipif(not LONG, reason="30 s for each case: IMAGEIO_TEST_LONG=1")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.timeout(300)
def test_killed_upload_of_10_mb_per_second_loses_15_seconds_at_most(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The command as it is, killed after 15 to 30 s, at no moment in particular."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    choice = random.Random(seed)
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as f:
        for number in range(48):
            f.write(pattern(8 * MiB, number))
    size = source.stat().st_size
    target.write_bytes(b"\xff" * size)
    arguments: list[str | Path] = ["upload", "--json", "--no-local", "--cafile", daemon.cafile, source]
    slow = daemon.add_ticket(target, size, rate=RATE)
    budget = choice.randrange(15 * RATE, 30 * RATE) // 4  # 4 connections have the same rate
    with Proxy(daemon.port, lambda: budget, hold=True) as proxy:
        process = start(*arguments, f"https://localhost:{proxy.port}/images/{slow}")
        eventually(lambda: proxy.held.acquire(blocking=False), "a connection is held", timeout=TIMEOUT)
        process.kill()
        ended(process)
        carried = proxy.carried
    daemon.remove(slow)
    result = ended(start(*arguments, daemon.url(daemon.add_ticket(target, size), host="127.0.0.1")))
    assert result.status == 0, result
    lost = carried - json.loads(result.out.splitlines()[-1])["resumed"]
    print(f"killed after {carried / RATE:.1f} s of work: {lost / RATE:.1f} s were sent again")
    assert lost < 15 * RATE
    assert source.read_bytes() == target.read_bytes()
