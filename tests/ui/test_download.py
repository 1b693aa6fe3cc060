# SPDX-License-Identifier: Apache-2.0
"""Downloads by the page in a real browser."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imageio_daemon.units import MiB
from tests.support.daemon import Daemon
from tests.support.polling import eventually
from tests.ui.conftest import MakeDisk, MakeLink, same
from tests.ui.wire import Wire

if TYPE_CHECKING:
    from tests.ui.browser import Browser

SIZE = 256 * MiB + 512
BLOCK = 4 * MiB
LONG = 90.0


def digests(path: Path) -> list[str]:
    with open(path, "rb") as file:
        return [hashlib.sha256(block).hexdigest() for block in iter(lambda: file.read(BLOCK), b"")]


def test_disk_is_saved_without_its_holes_and_compared(
    browser: "Browser", page_daemon: Daemon, make_disk: MakeDisk, make_link: MakeLink
) -> None:
    disk = make_disk("disk.raw", SIZE, 20)
    name = "my disk; 1.raw"  # in quotes in the answer
    link = make_link(SIZE, disk, ops=["read"], filename=name)
    browser.open(link.url)
    browser.offer_picker()
    sent = page_daemon.served("remote", "lane")["sent"]
    browser.press("Save the disk")
    browser.wait("The file is complete", timeout=LONG)
    assert browser.saved(name, BLOCK) == [SIZE, digests(disk)]
    assert page_daemon.served("remote", "lane")["sent"] - sent < 60 * MiB


def test_download_goes_on_after_a_pause_and_a_cut(
    browser: "Browser", page_daemon: Daemon, make_disk: MakeDisk, make_link: MakeLink, wire: Wire
) -> None:
    disk = make_disk("disk.raw", 64 * MiB, 28)
    link = make_link(64 * MiB, disk, ops=["read"], rate=16 * MiB)
    browser.open(link.url)
    browser.offer_picker()
    browser.press("Save the disk")
    browser.until(20)
    browser.press("Pause")
    browser.wait("Paused")
    browser.press("Continue")
    browser.wait("Downloading")
    wire.cut()
    eventually(lambda: "The connection is lost" in browser.text("waiting"), "it says so", timeout=20)
    wire.mend()
    assert page_daemon.control("PATCH", f"/tickets/{link.ticket}", b'{"rate": 0}').status == 200
    browser.wait("The file is complete", timeout=LONG)
    assert browser.saved("disk.raw", BLOCK) == [64 * MiB, digests(disk)]


def test_browser_without_file_access_saves_by_itself_and_compares(
    browser: "Browser", make_disk: MakeDisk, make_link: MakeLink, tmp_path: Path
) -> None:
    disk = make_disk("disk.raw", 64 * MiB, 10)
    name = "Größe 日本 1%41.raw"  # as an extended value in the answer
    link = make_link(64 * MiB, disk, ops=["read"], filename=name)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    browser.save_to(downloads)
    browser.open(link.url)
    browser.take_picker()
    browser.press("Download")
    saved = downloads / name
    eventually(lambda: saved.exists() and saved.stat().st_size == 64 * MiB, "it is saved", timeout=LONG)
    assert same(saved, disk)
    browser.press("Compare a saved file")
    browser.choose(saved)
    browser.wait("The file is the disk", timeout=LONG)


def test_file_that_is_not_the_disk_is_told(
    browser: "Browser", make_disk: MakeDisk, make_link: MakeLink, tmp_path: Path
) -> None:
    disk = make_disk("disk.raw", 24 * MiB, 10)
    link = make_link(24 * MiB, disk, ops=["read"])
    wrong = tmp_path / "wrong.raw"
    wrong.write_bytes(disk.read_bytes())
    with open(wrong, "r+b") as file:
        file.seek(17 * MiB)
        file.write(b"?" * 4096)
    browser.open(link.url)
    browser.press("Compare a saved file")
    browser.choose(wrong)
    browser.wait("The file is not the disk")
    browser.press("Back")
    browser.wait("Download a disk")
    os.truncate(wrong, 12 * MiB)
    browser.press("Compare a saved file")
    browser.choose(wrong)
    browser.wait("The file is not the disk")


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_canceled_download_leaves_no_file(
    browser: "Browser", make_disk: MakeDisk, make_link: MakeLink, paused: bool
) -> None:
    disk = make_disk("canceled.raw", 64 * MiB, 20)
    link = make_link(64 * MiB, disk, ops=["read"], rate=8 * MiB, filename="canceled.raw")
    browser.open(link.url)
    browser.offer_picker()
    browser.press("Save the disk")
    browser.until(10)
    if paused:
        browser.press("Pause")
        browser.wait("Paused")
    browser.press("Cancel")
    browser.wait("Download a disk")
    assert browser.saved("canceled.raw", BLOCK) == [0, []]


def test_data_that_becomes_zeros_while_it_is_read_is_zeros_in_the_file(
    browser: "Browser", page_daemon: Daemon, tmp_path: Path, make_link: MakeLink
) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"x" * BLOCK)
    link = make_link(BLOCK, disk, ops=["read"], rate=MiB, filename="zeros.raw")
    browser.open(link.url)
    browser.offer_picker()
    browser.press("Save the disk")
    lane = page_daemon.served("remote", "lane")["sent"]
    eventually(lambda: page_daemon.served("remote", "lane")["sent"] - lane > MiB, "a part is read", timeout=20)
    disk.write_bytes(bytes(BLOCK))
    assert page_daemon.control("PATCH", f"/tickets/{link.ticket}", b'{"rate": 0}').status == 200
    browser.wait("The file is complete", timeout=LONG)
    assert browser.saved("zeros.raw", BLOCK) == [BLOCK, digests(disk)]
