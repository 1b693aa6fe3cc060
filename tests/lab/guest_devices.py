# SPDX-License-Identifier: Apache-2.0
"""A ticket as a local block device, made and removed by the lines of docs/nbd.md: kernel NBD client, ublk, VDUSE."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import fill, first_difference
from tests.ioutil.engine_driver import Image
from tests.support.polling import eventually

from .guest_errors import HARDWARE_ERROR, SYNCHRONIZE_CACHE
from .kernel_storage import SIZE as DISK_SIZE
from .kernel_storage import MiB, mounted, run, scsi_disk
from .small_daemon import Daemon, running_daemon

SIZE = 128 * MiB
IMAGE = Path("/var/tmp/image")
TICKET = "kernel"
#: Headings of docs/nbd.md.
KINDS = {"nbd": "The kernel's NBD client", "ublk": "ublk", "vduse": "VDUSE"}
#: Load that ends with an error only.
FIO = ("fio", "--name=lab", "--rw=randwrite", "--bs=4k", "--time_based", "--runtime=300",
       "--direct=1", "--ioengine=libaio", "--iodepth=16")  # fmt: skip


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ticket(daemon: Daemon) -> Iterator[str]:
    """A ticket for an empty image."""
    make_image()
    with ticket_for(daemon, IMAGE, SIZE):
        yield TICKET


def make_image() -> None:
    with IMAGE.open("wb") as file:
        file.truncate(SIZE)


@contextlib.contextmanager
def ticket_for(daemon: Daemon, image: Path, size: int) -> Iterator[None]:
    daemon.add_ticket(TICKET, image, size)
    try:
        yield
    finally:
        daemon.remove_ticket(TICKET)


@pytest.fixture
def device(daemon: Daemon, ticket: str, kind: str) -> Iterator[Path]:
    """The ticket as a device."""
    with attached(daemon, kind) as device:
        yield device


@contextlib.contextmanager
def attached(daemon: Daemon, kind: str) -> Iterator[Path]:
    """Run the first lines of a recipe, and the last ones in the end."""
    section = re.split(r"^##+ ", Path("/src/docs/nbd.md").read_text(), flags=re.MULTILINE)
    (text,) = (text for text in section if text.startswith(f"{KINDS[kind]}\n"))
    attach, detach = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    before = devices()
    follow(attach, daemon)
    try:
        eventually(lambda: devices() > before, "the device is there", timeout=60)
        (device,) = devices() - before
        yield device
    finally:
        follow(detach, daemon)
        eventually(lambda: devices() <= before, "the device is gone", timeout=60)


def follow(recipe: str, daemon: Daemon) -> None:
    lines = [line.removeprefix("# ") for line in recipe.splitlines()]
    subprocess.run(
        ["sh", "-exc", "\n".join(lines)],
        cwd="/src",
        env={**os.environ, "SOCKET": str(daemon.nbd), "TICKET": TICKET},
        timeout=120,
        check=True,
    )


def devices() -> set[Path]:
    """Return the block devices that have a size."""
    return {Path("/dev", size.parent.name) for size in Path("/sys/block").glob("*/size") if int(size.read_text())}


@contextlib.contextmanager
def load(device: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Write to a device until that fails."""
    process = subprocess.Popen([*FIO, f"--filename={device}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: allocated() > MiB, "it writes", timeout=120)
        yield process
    finally:
        process.kill()
        process.wait(120)


def allocated() -> int:
    return IMAGE.stat().st_blocks * 512


def test_what_is_written_to_the_device_is_in_the_image(device: Path) -> None:
    content = fill(device, 8 * MiB, seed=1)
    assert not first_difference(IMAGE.read_bytes()[: 8 * MiB], content)


def test_discard_frees_space_of_the_image(device: Path) -> None:
    fill(device, 8 * MiB, seed=1)
    before = allocated()
    run("blkdiscard", "--offset", 0, "--length", 8 * MiB, device)
    assert allocated() <= before - 8 * MiB


def test_zeroing_reaches_the_image(device: Path, kind: str) -> None:
    fill(device, 8 * MiB, seed=1)
    limit = Path("/sys/block", device.name, "queue/write_zeroes_max_bytes").read_text().strip()
    with Image(device) as image:
        method = image.zero(0, 8 * MiB, lib.IOU_ALLOCATE).method
        image.flush()
    print(f"METHODS | {kind}, write_zeroes_max_bytes={limit} | allocate {method}")
    assert method == lib.IOU_METHOD_ZERO_RANGE
    assert int(limit) > 0
    assert IMAGE.read_bytes()[: 8 * MiB] == bytes(8 * MiB)


def test_file_system_lives_on_it_and_is_trimmed(device: Path) -> None:
    with mounted("ext4", device) as directory:
        (directory / "data").write_bytes(b"d" * 16 * MiB)
        run("sync", "-f", directory)
        full = allocated()
        (directory / "data").unlink()
        run("sync", "-f", directory)
        run("fstrim", directory)
        assert allocated() <= full - 8 * MiB
    run("e2fsck", "-f", "-n", device)


def test_fio_verifies(device: Path) -> None:
    run("fio", "--name=lab", f"--filename={device}", "--rw=randrw", "--bsrange=4k-64k", "--size=32M", "--io_size=8M",
        "--direct=1", "--ioengine=libaio", "--iodepth=16", "--verify=crc32c", "--fsync=64")  # fmt: skip


def test_content_is_there_after_another_attachment(daemon: Daemon, ticket: str, kind: str) -> None:
    with attached(daemon, kind) as device:
        content = fill(device, MiB, seed=5)
    with attached(daemon, kind) as device:
        with device.open("rb") as file:
            assert not first_difference(file.read(MiB), content)


def test_removed_device_leaves_no_connection_and_a_daemon_that_serves(daemon: Daemon, ticket: str, kind: str) -> None:
    with attached(daemon, kind) as device:
        fill(device, MiB, seed=6)
        assert daemon.status(ticket)["connections"] > 0
    eventually(lambda: daemon.status(ticket)["connections"] == 0, "its connections are gone")
    daemon.upload(ticket, 0, b"x" * 4096, flush=True)
    assert IMAGE.read_bytes()[:4096] == b"x" * 4096


def test_device_is_served_by_threads_in_c(daemon: Daemon, device: Path) -> None:
    eventually(lambda: "nbd-lane" in daemon.threads, "lanes have its connections")


def test_flush_of_the_device_is_one_of_the_storage(daemon: Daemon, kind: str) -> None:
    with scsi_disk() as disk, ticket_for(daemon, disk.path, DISK_SIZE), attached(daemon, kind) as device:
        fill(device, MiB, seed=7)
        disk.fail(SYNCHRONIZE_CACHE, HARDWARE_ERROR)
        with device.open("r+b", buffering=0) as file:
            file.write(bytes(4096))
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(file.fileno())


def test_cancelled_ticket_fails_the_device_under_load(daemon: Daemon, ticket: str, kind: str) -> None:
    with attached(daemon, kind) as device, load(device) as process:
        daemon.remove_ticket(ticket)
        assert process.wait(120) != 0


def test_killed_daemon_fails_the_device_under_load(kind: str) -> None:
    make_image()
    with running_daemon(port=0) as daemon:
        daemon.add_ticket(TICKET, IMAGE, SIZE)
        with attached(daemon, kind) as device, load(device) as process:
            daemon.kill()
            assert process.wait(120) != 0
