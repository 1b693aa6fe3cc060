# SPDX-License-Identifier: Apache-2.0
"""Transfers over slow, long and lossy links. With IMAGEIO_TEST_LONG=1 also how fast they are: `make test-links`."""

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.networks import SERVER_ADDRESS, SlowNetwork, missing
from tests.client.programs import PROGRAM, TIMEOUT, ended, environment, start
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import MiB, pattern
from tests.support.polling import eventually

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
long = pytest.mark.skipif(
    not os.environ.get("IMAGEIO_TEST_LONG"), reason="takes long, and a machine that does nothing else"
)

#: Bits per second.
LINE = 100_000_000
ROUND_TRIP = 0.02
LOSS = 0.01
CONNECTIONS = 4


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The two hosts, with a daemon on one of them."""

    network: SlowNetwork
    daemon: Daemon
    directory: Path

    def disk(self, size: int) -> Path:
        """Make an image of data."""
        path = self.directory / "disk.raw"
        path.write_bytes(pattern(size))
        return path

    def target(self, size: int) -> Path:
        """Make an image for the server."""
        path = self.directory / "target.raw"
        path.touch()
        os.truncate(path, size)
        return path

    def url(self, image: Path) -> str:
        """Return the URL of an image with a new ticket."""
        ticket = self.daemon.add_ticket(image, image.stat().st_size, sparse=True, ops=["read", "write"])
        return self.daemon.url(ticket, host=SERVER_ADDRESS)

    def client(self, command: str, *arguments: str | Path) -> list[dict[str, Any]]:
        """Run imageio-client to its end, and return what it tells."""
        program = (*self.network.on_client, *PROGRAM)
        compression = ("--wire-compression=never",) if command == "upload" else ()  # the bytes of the line are measured
        options = ("--json", *compression, "--cafile", self.daemon.cafile, f"--connections={CONNECTIONS}")
        result = ended(start(command, *options, *arguments, program=program), timeout=10 * TIMEOUT)
        assert result.status == 0, result
        return [json.loads(line) for line in result.out.splitlines()]

    def curl(self, disk: Path, url: str) -> float:
        """Upload with as many curls, each a part of the image; return the seconds."""
        size = disk.stat().st_size // CONNECTIONS
        parts = []
        for number in range(CONNECTIONS):
            part = self.directory / f"part{number}"
            part.write_bytes(disk.read_bytes()[number * size :][:size])
            where = f"Content-Range: bytes {number * size}-{(number + 1) * size - 1}/*"
            parts.append(("--upload-file", part, "--header", where))
        options = ("--silent", "--show-error", "--fail", "--cacert", self.daemon.cafile)
        started = time.monotonic()
        programs = [
            subprocess.Popen([*self.network.on_client, "curl", *options, *part, f"{url}?flush=n"], env=environment())
            for part in parts
        ]
        assert [program.wait(10 * TIMEOUT) for program in programs] == [0] * CONNECTIONS
        return time.monotonic() - started

    def rsync(self, source: Path, target: Path, *options: str) -> float:
        """Update a file of the server with rsync's daemon, which does not encrypt; return the seconds."""
        configuration = self.directory / "rsyncd.conf"
        configuration.write_text(
            f"use chroot = no\nuid = root\ngid = root\n[images]\npath = {target.parent}\nread only = no\n"
        )
        serve = ["rsync", "--daemon", "--no-detach", f"--config={configuration}", f"--address={SERVER_ADDRESS}"]
        look = [*self.network.on_server, "ss", "--listening", "--tcp", "--no-header", "sport = :873"]
        server = subprocess.Popen([*self.network.on_server, *serve])
        try:
            eventually(lambda: subprocess.run(look, check=True, capture_output=True).stdout, "rsync listens")
            copy = ["rsync", "--fsync", *options, str(source), f"rsync://{SERVER_ADDRESS}/images/{target.name}"]
            started = time.monotonic()
            subprocess.run([*self.network.on_client, *copy], check=True)
            return time.monotonic() - started
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def hosts(request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts, and a link between them as a test says."""
    config = {"daemon": {"state_dir": STATE}}
    with SlowNetwork(**request.param) as network, network.daemon(certificates, tmp_path, config) as daemon:
        yield Hosts(network, daemon, tmp_path)


def link(**shape: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("hosts", [shape], indirect=True, ids=str)


# A slow line


@link(rate="2mbit")
@pytest.mark.parametrize("command", ["upload", "download"])
def test_progress_moves_every_2_seconds(hosts: Hosts, command: str) -> None:
    """A line of JSON comes each second."""
    size = MiB * (8 if os.environ.get("IMAGEIO_TEST_LONG") else 1)
    disk = hosts.disk(size)
    if command == "upload":
        told = hosts.client(command, disk, hosts.url(hosts.target(size)))
    else:
        told = hosts.client(command, hosts.url(disk), hosts.directory / "copy.raw")
    done = [line["data"] for line in told if line["event"] == "progress"]
    assert len(done) >= 3
    assert all(earlier < later or later == size for earlier, later in zip(done, done[2:], strict=False)), done
    assert all(100_000 <= line["bytes_per_second"] <= 400_000 for line in told[3:-1]), told
    ends = [line["elapsed"] + line["seconds_left"] for line in told[3:-1] if line["seconds_left"]]
    assert all(0.5 < end / told[-1]["elapsed"] < 2 for end in ends), told


# Fast enough


@long
@link(rate=f"{LINE}bit", round_trip=ROUND_TRIP)
@pytest.mark.parametrize("command", ["upload", "download"])
def test_long_line_is_used(hosts: Hosts, command: str, record_property: Any) -> None:
    size = 192 * MiB
    disk = hosts.disk(size)
    if command == "upload":
        told = hosts.client(command, disk, hosts.url(hosts.target(size)))
    else:
        told = hosts.client(command, hosts.url(disk), hosts.directory / "copy.raw")
    share = 8 * size / told[-1]["elapsed"] / LINE
    print(f"{command}: {share:.3f} of the line")
    assert share >= 0.9


@long
@link(rate=f"{LINE}bit", round_trip=ROUND_TRIP, loss=LOSS)
def test_lossy_line_is_used_as_by_curl(hosts: Hosts) -> None:
    size = 64 * MiB
    disk = hosts.disk(size)
    theirs = hosts.curl(disk, hosts.url(hosts.target(size)))
    ours = hosts.client("upload", disk, hosts.url(hosts.target(size)))[-1]["elapsed"]
    print(f"curl {theirs:.1f} s, imageio-client {ours:.1f} s: {theirs / ours:.2f} of its rate")
    assert theirs / ours >= 0.5


@long
@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
@link(rate="1gbit")
def test_update_takes_less_than_rsync(hosts: Hosts) -> None:
    """10 GiB with 1 GiB of data in 16 places, of which 100 MiB have changed: rsync reads the holes, too."""
    older, newer, other = (hosts.directory / name for name in ("older", "newer", "other"))
    with older.open("wb") as f:
        f.truncate(10240 * MiB)
        for place in range(16):
            f.seek(place * 640 * MiB)
            f.write(pattern(64 * MiB, place))
    for copy in (newer, other):
        subprocess.run(["cp", "--sparse=always", older, copy], check=True)
    with newer.open("r+b") as f:
        for place in range(25):
            f.seek(place % 16 * 640 * MiB + place // 16 * 32 * MiB)
            f.write(pattern(4 * MiB, 100 + place))
    theirs = hosts.rsync(newer, other, "--inplace", "--no-whole-file", "--ignore-times")
    full = hosts.client("upload", newer, hosts.url(hosts.target(10240 * MiB)))[-1]["elapsed"]
    ours = hosts.client("upload", "--update", newer, hosts.url(older))[-1]["elapsed"]
    print(f"update {ours:.2f} s, all {full:.2f} s ({full / ours:.1f}), rsync {theirs:.2f} s ({theirs / ours:.1f})")
    subprocess.run(["cmp", newer, older], check=True)
    assert theirs / ours >= 3
