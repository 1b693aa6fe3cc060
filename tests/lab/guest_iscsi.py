# SPDX-License-Identifier: Apache-2.0
"""A disk of iSCSI whose target is lost while it is written, and comes back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.ioutil.engine_driver import Failed, Image
from tests.support.polling import eventually

from .kernel_iscsi import IscsiDisk, iscsi_disk
from .kernel_storage import SIZE, MiB, plain_file
from .lost_storage import check_that_nobody_else_waits, running_beside
from .small_daemon import Daemon

#: Seconds that requests wait for the target.
PATIENCE = 5


@pytest.fixture
def backing() -> Iterator[Path]:
    with plain_file() as path:
        yield path


@pytest.fixture
def disk(backing: Path) -> Iterator[IscsiDisk]:
    with iscsi_disk(backing, emulate_write_cache=1) as disk:
        yield disk


@pytest.fixture
def impatient(backing: Path) -> Iterator[IscsiDisk]:
    with iscsi_disk(backing, emulate_write_cache=1, replacement_timeout=PATIENCE) as disk:
        yield disk


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_beside() as daemon:
        yield daemon


def is_back(image: Image) -> bool:
    """Tell whether the disk works, by zeroing a range."""
    return image.attempt(lib.IOU_ZERO, 4096, 4096).error == 0


def test_a_lost_target_holds_up_nobody_else(disk: IscsiDisk, backing: Path) -> None:
    check_that_nobody_else_waits(disk, disk.path)
    assert backing.read_bytes()[: 20 * 4096] == b"h" * 20 * 4096


def test_reads_writes_and_zeros_fail_while_the_target_is_lost_and_work_later(impatient: IscsiDisk) -> None:
    with Image(impatient.path) as image:
        impatient.stop()
        for attempt in (
            lambda: image.read(0, 4096),
            lambda: image.write(0, b"w" * 4096),
            lambda: image.zero(4096, 4096),
        ):
            with pytest.raises(Failed) as failed:
                attempt()
            print("without a target:", failed.value)
        impatient.start()
        eventually(lambda: is_back(image), "the target is back", timeout=60)
        image.write(0, b"w" * 4096)
        assert image.read(0, 8192) == b"w" * 4096 + bytes(4096)
        image.flush()


def test_flush_that_failed_without_a_target_fails_for_ever(impatient: IscsiDisk) -> None:
    with Image(impatient.path) as image:
        image.write(0, b"w" * 4096)
        impatient.stop()
        with pytest.raises(Failed) as failed:
            image.flush()
        print("flush:", failed.value)
        impatient.start()
        eventually(lambda: is_back(image), "the target is back", timeout=60)
        with pytest.raises(Failed):
            image.flush()


# Through the daemon


def test_upload_waits_for_the_target(disk: IscsiDisk, backing: Path, daemon: Daemon) -> None:
    daemon.add_ticket("iscsi", disk.path, SIZE)
    daemon.upload("iscsi", 0, b"x" * 4096, flush=True)
    disk.stop()
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(daemon.upload, "iscsi", 0, b"y" * MiB, flush=True)
        eventually(lambda: daemon.status("iscsi")["storage_wait"] > 0, "it waits", timeout=60)
        for n in range(5):
            daemon.upload("other", n * 4096, b"o" * 4096, flush=True)
        assert not upload.done()
        disk.start()
        upload.result()
    daemon.remove_ticket("iscsi")
    assert backing.read_bytes()[:MiB] == b"y" * MiB


def test_upload_is_answered_500_when_the_target_stays_away(impatient: IscsiDisk, backing: Path, daemon: Daemon) -> None:
    daemon.add_ticket("iscsi", impatient.path, SIZE)
    daemon.upload("iscsi", 0, b"x" * 4096, flush=True)
    impatient.stop()
    daemon.upload("iscsi", 0, b"y" * 4096, flush=True, status=500)
    daemon.upload("other", 0, b"o" * 4096, flush=True)
    daemon.remove_ticket("iscsi")
    impatient.start()
    daemon.add_ticket("iscsi", impatient.path, SIZE)
    eventually(lambda: daemon.get("iscsi", "/extents", status=None).status == 200, "the target is back", timeout=60)
    daemon.upload("iscsi", 4096, b"z" * 4096, flush=True)
    daemon.remove_ticket("iscsi")
    assert backing.read_bytes()[4096:8192] == b"z" * 4096
