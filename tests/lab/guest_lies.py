# SPDX-License-Identifier: Apache-2.0
"""A disk that confirms writes and does not do them: who compares finds out, and nobody else can."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ioutil.disk import fill

from .kernel_storage import SIZE, FlakyDisk, MiB, flaky_disk, mounted, run
from .small_daemon import Daemon, running_daemon

SOURCE = Path("/var/tmp/source")
#: The exit status of the client when checksums differ.
DIFFERENT = 6

LIES: dict[str, Callable[[FlakyDisk], None]] = {
    "dropped": FlakyDisk.drop_writes,
    "corrupted": FlakyDisk.corrupt_writes,
}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def flaky() -> Iterator[FlakyDisk]:
    with flaky_disk(SIZE) as disk:
        yield disk


@pytest.fixture(params=["device", "ext4"])
def image(request: pytest.FixtureRequest, flaky: FlakyDisk, daemon: Daemon) -> Iterator[Path]:
    """An image with a ticket, on the flaky disk, and a source of the same size for it."""
    fill(SOURCE, 4 * MiB, seed=1)
    if request.param == "device":
        SOURCE.open("r+b").truncate(SIZE)
        daemon.add_ticket("flaky", flaky.path, SIZE)
        yield flaky.path
        daemon.remove_ticket("flaky")
        return
    run("modprobe", request.param)
    with mounted(request.param, flaky.path) as directory:
        path = directory / "image"
        fill(path, 4 * MiB, seed=2)
        run("sync", "-f", directory)
        daemon.add_ticket("flaky", path, 4 * MiB)
        yield path
        flaky.heal()
        daemon.remove_ticket("flaky")


def client(command: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name("imageio-client")
    words = [program, command, "--insecure", *arguments]  # the daemon has no TLS
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout, done.stderr)
    return done


@pytest.mark.parametrize("lie", LIES)
def test_upload_that_is_verified_fails(image: Path, flaky: FlakyDisk, daemon: Daemon, lie: str) -> None:
    LIES[lie](flaky)
    done = client("upload", "--quiet", "--verify", SOURCE, daemon.url("flaky"))
    assert done.returncode == DIFFERENT
    (line,) = done.stderr.splitlines()
    assert "the target reads as" in line


def test_upload_that_is_not_verified_is_told_nothing(image: Path, flaky: FlakyDisk, daemon: Daemon) -> None:
    """The disk says that all is well, to the flush as well."""
    flaky.drop_writes()
    assert client("upload", "--quiet", SOURCE, daemon.url("flaky")).returncode == 0
    flaky.heal()
    done = client("upload", "--quiet", "--verify", SOURCE, daemon.url("flaky"))
    assert done.returncode == 0, "and when it works again, so does the next upload"


def test_upload_to_a_disk_whose_writes_fail_fails(image: Path, flaky: FlakyDisk, daemon: Daemon) -> None:
    flaky.break_writes()
    done = client("upload", "--quiet", "--retry-for", 1, SOURCE, daemon.url("flaky"))
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
