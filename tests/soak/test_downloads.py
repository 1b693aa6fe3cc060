# SPDX-License-Identifier: Apache-2.0
"""Downloads that are interrupted again and again go on, each time with another ticket, and with little received twice.

What interrupts them: SIGINT, SIGKILL, a cut network, a daemon that is stopped or killed, a disk that is full. In
between the image changes now and then. Every copy is the image at the end. 4 interruptions, 300 with
IMAGEIO_TEST_LONG=1.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.client.programs import ended, run, start
from tests.client.proxy import Proxy
from tests.soak.test_resume import CONNECTIONS, LONG, RATE, TIMEOUT, random_image
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import MiB, pattern
from tests.support.polling import eventually
from tests.support.realstorage import missing, mounted

#: Bytes that a connection carries until it is cut or held.
BUDGET = (4 * MiB, 12 * MiB) if LONG else (12 * MiB, 24 * MiB)
#: Runs of each format, and the interruptions of each.
SEEDS = 30 if LONG else 1
INTERRUPTIONS = 5 if LONG else 2
FORMATS = ["raw", "qcow2"]
WAYS = ["interrupt", "kill", "cut", "stop daemon", "kill daemon", "full disk"]
#: Bytes that an interruption may cost: on each connection what it has received since the last flush, and a block.
MOST_LOST = CONNECTIONS * (4 + 4) * MiB
#: Bytes for which a disk has room before it is full, and otherwise.
LITTLE_ROOM, MUCH_ROOM = (4 * MiB, 24 * MiB), 400 * MiB
#: In one of so many attempts the image has changed.
CHANGES = 6

#: The command with short units, and with a flush after each.
PROGRAM = """\
import sys
from imageio_daemon.client import cli
from imageio_daemon.client.local.qemu import QemuTarget
from imageio_daemon.client.local.target import NewFile
from imageio_daemon.client.transfer.transfer_options import DownloadOptions
NewFile.portion = QemuTarget.portion = 4 * 1024**2
DownloadOptions.__init__.__kwdefaults__["checkpoint"] = 0
sys.exit(cli.main())
"""


@pytest.fixture
def daemon(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates, {"daemon": {"shutdown_timeout": 1, "state_dir": STATE}}) as made:
        yield made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A directory that can be made full, if this user can mount one."""
    if missing("tmpfs"):
        (tmp_path / "disk").mkdir()
        yield tmp_path / "disk"
        return
    with mounted("tmpfs", tmp_path, MUCH_ROOM) as directory:
        yield directory


@dataclass
class Campaign:
    """Interrupted downloads of images, one after the other."""

    daemon: Daemon
    directory: Path
    disk: Path
    choice: random.Random
    format_name: str
    interruptions: int = 0
    downloads: int = 0
    resumed: int = 0
    data: int = 0
    carried: int = 0
    ways: list[str] = field(default_factory=list)

    def download(self) -> None:
        """Download one image, through interruptions."""
        self.downloads += 1
        source, copy = self.directory / f"source{self.downloads}", self.disk / f"copy{self.downloads}"
        self.data += random_image(source, self.choice)
        while not self._attempt(source, copy):
            self.interruptions += 1
            if self.choice.randrange(CHANGES) == 0:
                self._change(source)
        subprocess.run(["qemu-img", "compare", "-f", "raw", "-F", self.format_name, source, copy], check=True)
        assert os.listdir(self.disk) == [copy.name]
        source.unlink()
        copy.unlink()

    def _attempt(self, source: Path, copy: Path) -> bool:
        """Download until something interrupts it; return True if nothing did."""
        way = self.choice.choice(WAYS if not missing("tmpfs") else WAYS[:-1])
        ticket = self.daemon.add_ticket(source, source.stat().st_size, ops=["read"])
        budget = (400 * MiB, 400 * MiB + 1) if way == "full disk" else BUDGET
        with (
            self._little_room(way),
            Proxy(self.daemon.port, lambda: self.choice.randrange(*budget), hold=way != "cut") as proxy,
        ):
            url = f"https://localhost:{proxy.port}/images/{ticket}"
            options = ["--no-local", "--retry-for", "0", "--connections", str(CONNECTIONS), "--format"]
            arguments = [*options, self.format_name, "--cafile", str(self.daemon.cafile), url, str(copy)]
            process = start("download", "--json", *arguments, program=(sys.executable, "-c", PROGRAM))
            if way not in ("cut", "full disk"):
                eventually(
                    lambda: process.poll() is not None or proxy.held.acquire(blocking=False),
                    "the download is held or ends",
                    timeout=TIMEOUT,
                )
                if process.poll() is None:
                    self._interrupt(process, way)
            result = ended(process, timeout=TIMEOUT)
            self.carried += proxy.carried
        self.daemon.control("DELETE", f"/tickets/{ticket}")
        if result.status:
            self.ways.append(way)
            assert result.status in (4, 5, 128 + signal.SIGINT, -signal.SIGKILL), result
            assert result.status != 5 or "No space left" in result.err, result
        else:
            self.resumed += json.loads(result.out.splitlines()[-1])["resumed"] > 0
        return result.status == 0

    @contextlib.contextmanager
    def _little_room(self, way: str) -> Iterator[None]:
        """Let the disk be full soon, for the block."""
        if way != "full disk":
            yield
            return
        status = os.statvfs(self.disk)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self._resize(used + self.choice.randrange(*LITTLE_ROOM))
        yield
        self._resize(MUCH_ROOM)

    def _resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.disk], check=True)

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

    def _change(self, source: Path) -> None:
        """Change the image, as a guest does that has run meanwhile."""
        length = self.choice.randrange(1, MiB)
        self.ways.append("change")
        self.data += length + 8 * MiB  # the blocks at both ends are received anew
        with source.open("r+b") as f:
            f.seek(self.choice.randrange(source.stat().st_size - length))
            f.write(pattern(length, 77))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_interrupted_downloads_go_on_with_other_tickets(
    daemon: Daemon, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, seed: int, format_name: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    campaign = Campaign(daemon, tmp_path, disk, random.Random(seed), format_name)
    while campaign.interruptions < INTERRUPTIONS:
        campaign.download()
    print(
        f"{campaign.interruptions} interruptions ({', '.join(campaign.ways)}), {campaign.downloads} images, "
        f"{campaign.resumed} of them continued: {campaign.data / MiB:.0f} MiB of data, "
        f"{campaign.carried / MiB:.0f} MiB over the network"
    )
    assert campaign.carried < 1.02 * campaign.data + campaign.interruptions * MOST_LOST


@pytest.mark.skipif(not LONG, reason="60 s for each case: IMAGEIO_TEST_LONG=1")
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.timeout(300)
def test_killed_download_of_10_mb_per_second_loses_15_seconds_at_most(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, format_name: str
) -> None:
    """The command as it is, killed after 15 to 30 s at no moment in particular; and the time of all beside one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    choice = random.Random(seed)
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as f:
        for number in range(48):
            f.write(pattern(8 * MiB, number))
    size = source.stat().st_size
    slow = daemon.add_ticket(source, size, rate=RATE, ops=["read"])
    arguments: list[str | Path] = ["download", "--json", "--no-local", "--format", format_name]
    arguments += ["--cafile", daemon.cafile]
    budget = choice.randrange(15 * RATE, 30 * RATE) // 4  # 4 connections have the same rate
    began = time.monotonic()
    with Proxy(daemon.port, lambda: budget, hold=True) as proxy:
        process = start(*arguments, f"https://localhost:{proxy.port}/images/{slow}", copy)
        eventually(lambda: proxy.held.acquire(blocking=False), "a connection is held", timeout=TIMEOUT)
        process.kill()
        ended(process)
        carried = proxy.carried
    result = run(*arguments, daemon.url(slow, host="127.0.0.1"), copy)
    took = time.monotonic() - began
    assert result.status == 0, result
    lost = carried - json.loads(result.out.splitlines()[-1])["resumed"]
    alone = size / RATE
    print(
        f"killed after {carried / RATE:.1f} s of work: {lost / RATE:.1f} s were received again; all took {took:.1f} s, "
        f"{took / alone:.2f} of what one download takes"
    )
    assert lost < 15 * RATE
    subprocess.run(["qemu-img", "compare", "-f", "raw", "-F", format_name, source, copy], check=True)
