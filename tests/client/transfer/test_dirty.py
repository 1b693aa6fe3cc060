# SPDX-License-Identifier: Apache-2.0
"""Incremental downloads: what a bitmap of a qcow2 image marks, and nothing else."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, Usage, download
from imageio_daemon.client.transfer.plan import widened
from imageio_daemon.image.extents import Extent
from tests.support.daemon import Daemon
from tests.support.images import KiB, MiB
from tests.support.nbdservers import make_qcow2, qemu_nbd

SIZE = 64 * MiB

pytestmark = pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="qemu-nbd is not installed")

#: Serves the disk, with its bitmap, and tells the URL.
Serve = Callable[[], str]


def qemu_img(*arguments: str | Path) -> str:
    return subprocess.check_output(["qemu-img", *map(str, arguments)], text=True)


def guest_writes(disk: Path, *commands: str) -> None:
    options = [word for command in commands for word in ("-c", command)]
    subprocess.check_call(["qemu-io", *options, str(disk)], stdout=subprocess.DEVNULL)


@pytest.fixture(params=[64 * KiB, 4 * KiB])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A disk with a bitmap that marks whole clusters, or less, of what is written from now on."""
    disk = make_qcow2(tmp_path / "disk.qcow2", SIZE)
    guest_writes(disk, "write -P 1 0 9M", "write -P 2 40M 3M", "write -P 3 63M 1M")
    qemu_img("bitmap", "--add", "-g", str(request.param), "-f", "qcow2", disk, "since-full")
    return disk


@pytest.fixture
def serve(daemon: Daemon, disk: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start() -> str:
            server = stack.enter_context(qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=since-full"))
            ticket = daemon.add_ticket(disk, SIZE, url=server.url, ops=["read"], dirty=True)
            return daemon.url(ticket)

        yield start


def change(disk: Path) -> None:
    """Write data over data, zeros over data, data into holes, at the end, and a few bytes somewhere."""
    guest_writes(
        disk, "write -P 7 1M 300k", "write -z 4M 1M", "write -P 8 20M 5M", "write -P 9 65535k 1k", "write -P 5 41M 512"
    )


def equal(disk: Path, copy: Path, format_name: str) -> bool:
    return "identical" in qemu_img("compare", "-f", "qcow2", "-F", format_name, disk, copy)


def test_increment_on_a_full_backup_reads_as_the_disk(tls: Settings, disk: Path, serve: Serve, tmp_path: Path) -> None:
    full, increment = tmp_path / "full.qcow2", tmp_path / "increment.qcow2"
    qemu_img("convert", "-f", "qcow2", "-O", "qcow2", disk, full)
    change(disk)
    done = download(serve(), increment, settings=tls, format="qcow2", dirty=True)
    qemu_img("rebase", "-u", "-f", "qcow2", "-b", full, "-F", "qcow2", increment)
    assert equal(disk, increment, "qcow2")
    assert done.progress.done == SIZE
    assert done.progress.data <= 5 * MiB + 600 * KiB


def test_older_copy_is_brought_up_to_date(tls: Settings, disk: Path, serve: Serve, tmp_path: Path) -> None:
    copy = tmp_path / "copy.raw"
    qemu_img("convert", "-f", "qcow2", "-O", "raw", disk, copy)
    change(disk)
    done = download(serve(), copy, settings=tls, dirty=True)
    assert equal(disk, copy, "raw")
    assert done.progress.data <= 5 * MiB + 600 * KiB


def test_full_backup_by_the_client_is_a_base(tls: Settings, disk: Path, serve: Serve, tmp_path: Path) -> None:
    full, increment = tmp_path / "full.qcow2", tmp_path / "increment.qcow2"
    download(serve(), full, settings=tls, format="qcow2")
    assert equal(disk, full, "qcow2")
    download(serve(), increment, settings=tls, format="qcow2", dirty=True)
    assert increment.stat().st_size < MiB  # nothing has changed yet


def test_image_that_exists_is_not_replaced_by_an_increment(tls: Settings, daemon: Daemon, tmp_path: Path) -> None:
    full = tmp_path / "full.qcow2"
    full.write_bytes(b"full")
    with pytest.raises(LocalError, match=r"full.qcow2 exists: what has changed goes to a new image"):
        download(daemon.url("ticket"), full, settings=tls, format="qcow2", dirty=True)
    assert full.read_bytes() == b"full"


def test_increment_in_a_format_without_backing_files_is_refused(tls: Settings, daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="into a new one of the format qcow2"):
        download(daemon.url("ticket"), tmp_path / "copy", settings=tls, format="vmdk", dirty=True)


def test_whole_blocks_are_dirty() -> None:
    found = [Extent(0, 15), Extent(15, 1, dirty=True), Extent(16, 10, zero=True), Extent(26, 14)]
    assert list(widened(found, 10)) == [
        Extent(0, 10),
        Extent(10, 5, dirty=True),
        Extent(15, 1, dirty=True),
        Extent(16, 4, zero=True, dirty=True),
        Extent(20, 6, zero=True),
        Extent(26, 14),
    ]
