# SPDX-License-Identifier: Apache-2.0
"""An NFS server that stops while images on it are written, and comes back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ioutil.engine_driver import Failed, Image
from tests.support.polling import eventually

from .guest_errors import write_and_flush
from .kernel_storage import FILESYSTEM, MiB, loop_disk, mounted, nfs_mounted, nfs_server, run
from .lost_storage import check_that_nobody_else_waits, running_beside
from .small_daemon import Daemon

#: What a request to the server may take on a soft mount: tenths of a second, and tries after the first.
IMPATIENT = ("timeo=10", "retrans=1")


@pytest.fixture
def directory() -> Iterator[Path]:
    run("modprobe", "xfs")
    with loop_disk(FILESYSTEM) as device, mounted("xfs", device) as directory:
        (directory / "image").write_bytes(bytes(MiB))
        yield directory


def test_soft_mount_whose_server_is_gone_fails_and_recovers(directory: Path) -> None:
    with nfs_server(directory) as server, nfs_mounted("soft", *IMPATIENT) as mount:
        with Image(mount / "image") as image:
            image.write(0, b"x" * 4096)
            server.stop()
            with pytest.raises(Failed) as failed:
                write_and_flush(image, b"y" * 4096)
            print("soft mount:", failed.value)
            server.start()
        with Image(mount / "image") as image:
            image.write(4096, b"z" * 4096)
            image.flush()
    assert (directory / "image").read_bytes()[4096:8192] == b"z" * 4096


def test_hard_mount_whose_server_is_gone_holds_up_nobody_else(directory: Path) -> None:
    with nfs_server(directory) as server, nfs_mounted("hard", *IMPATIENT) as mount:
        check_that_nobody_else_waits(server, mount / "image")
    assert (directory / "image").read_bytes()[: 20 * 4096] == b"h" * 20 * 4096


# Through the daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_beside() as daemon:
        yield daemon


def test_upload_to_a_soft_mount_fails_and_a_new_ticket_works(directory: Path, daemon: Daemon) -> None:
    with nfs_server(directory) as server, nfs_mounted("soft", *IMPATIENT) as mount:
        daemon.add_ticket("nfs", mount / "image", MiB)
        daemon.upload("nfs", 0, b"x" * 4096, flush=True)
        server.stop()
        daemon.upload("nfs", 0, b"y" * 4096, flush=True, status=500)
        daemon.upload("other", 0, b"o" * 4096, flush=True)
        server.start()
        daemon.remove_ticket("nfs")
        daemon.add_ticket("nfs", mount / "image", MiB)
        daemon.upload("nfs", 4096, b"z" * 4096, flush=True)
        daemon.remove_ticket("nfs")
    assert (directory / "image").read_bytes()[4096:8192] == b"z" * 4096


def test_upload_to_a_hard_mount_waits_for_the_server(directory: Path, daemon: Daemon) -> None:
    with nfs_server(directory) as server, nfs_mounted("hard", *IMPATIENT) as mount, ThreadPoolExecutor(1) as pool:
        daemon.add_ticket("nfs", mount / "image", MiB)
        daemon.upload("nfs", 0, b"x" * 4096, flush=True)
        server.stop()
        upload = pool.submit(daemon.upload, "nfs", 0, b"y" * MiB, flush=True)
        eventually(lambda: daemon.status("nfs")["storage_wait"] > 0, "it waits", timeout=60)
        for n in range(5):
            daemon.upload("other", n * 4096, b"o" * 4096, flush=True)
        assert not upload.done()
        server.start()
        upload.result()
        daemon.remove_ticket("nfs")
    assert (directory / "image").read_bytes() == b"y" * MiB
