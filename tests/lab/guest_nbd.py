# SPDX-License-Identifier: Apache-2.0
"""The kernel's own NBD client on our NBD service: a ticket as a local block device."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import fill, first_difference, on_disk
from tests.ioutil.engine_driver import Image
from tests.support.polling import eventually

from .kernel_storage import MiB, mounted, run
from .small_daemon import Daemon, running_daemon

SIZE = 128 * MiB
IMAGE = Path("/var/tmp/image")
DEVICE = Path("/dev/nbd0")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    run("modprobe", "nbd")
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def device(daemon: Daemon) -> Iterator[Path]:
    """A ticket for an empty image, as a device with two connections."""
    with IMAGE.open("wb") as file:
        file.truncate(SIZE)
    daemon.add_ticket("kernel", IMAGE, SIZE)
    with attached(daemon):
        yield DEVICE
    daemon.remove_ticket("kernel")


@contextlib.contextmanager
def attached(daemon: Daemon) -> Iterator[None]:
    run("nbd-client", "-unix", daemon.nbd, DEVICE, "-N", "kernel", "-C", "2")
    eventually(lambda: size() == SIZE, "the device is there")
    try:
        yield
    finally:
        run("nbd-client", "-d", DEVICE)
        eventually(lambda: size() == 0, "the device is gone")


def size() -> int:
    return int(Path("/sys/block/nbd0/size").read_text()) * 512


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


def test_zeroing_reaches_the_image(device: Path) -> None:
    fill(device, 8 * MiB, seed=1)
    limit = Path("/sys/block/nbd0/queue/write_zeroes_max_bytes").read_text().strip()
    with Image(device) as image:
        method = image.zero(0, 8 * MiB, lib.IOU_ALLOCATE).method
        image.flush()
    print(f"METHODS | kernel nbd, write_zeroes_max_bytes={limit} | allocate {method}")
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
    run("fio", "--name=lab", f"--filename={device}", "--rw=randrw", "--bs=4k", "--size=32M", "--io_size=8M",
        "--direct=1", "--ioengine=libaio", "--iodepth=16", "--verify=crc32c", "--fsync=64")  # fmt: skip


def test_content_is_there_after_another_attachment(device: Path, daemon: Daemon) -> None:
    content = fill(device, MiB, seed=5)
    run("nbd-client", "-d", DEVICE)
    eventually(lambda: size() == 0, "the device is gone")
    run("nbd-client", "-unix", daemon.nbd, DEVICE, "-N", "kernel", "-C", "2")
    eventually(lambda: size() == SIZE, "the device is there")
    assert not first_difference(on_disk(device)[:MiB], content)


def test_removed_ticket_fails_the_device_under_load(daemon: Daemon) -> None:
    with IMAGE.open("wb") as file:
        file.truncate(SIZE)
    daemon.add_ticket("kernel", IMAGE, SIZE)
    with attached(daemon):
        load = subprocess.Popen(
            ["fio", "--name=lab", f"--filename={DEVICE}", "--rw=randwrite", "--bs=4k", "--time_based", "--runtime=300",
             "--direct=1", "--ioengine=libaio", "--iodepth=16"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # fmt: skip
        eventually(lambda: allocated() > MiB, "it writes", timeout=60)
        daemon.remove_ticket("kernel")
        assert load.wait(120) != 0
