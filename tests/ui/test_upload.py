# SPDX-License-Identifier: Apache-2.0
"""Uploads by the page in a real browser."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imageio_daemon.units import GiB, KiB, MiB
from tests.support.daemon import Certificates, Daemon
from tests.support.polling import eventually
from tests.ui.conftest import MakeDisk, MakeLink, same
from tests.ui.memory import Watch

if TYPE_CHECKING:
    from tests.ui.browser import Browser

#: Bytes that the tab may have.
MOST_MEMORY = 300 * MiB
LONG = 90.0


def test_sparse_disk_is_uploaded_and_compared(
    browser: "Browser", page_daemon: Daemon, make_disk: MakeDisk, make_link: MakeLink
) -> None:
    disk = make_disk("disk.raw", 2 * GiB, 100)
    link = make_link(2 * GiB)
    browser.open(link.url)
    received = page_daemon.served("remote", "lane")["received"]
    browser.upload(disk)
    with Watch(browser.driver.service.process.pid) as memory:
        browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)
    assert page_daemon.served("remote", "lane")["received"] - received < 230 * MiB  # zeros were not sent
    assert link.path.stat().st_blocks * 512 < 256 * MiB
    assert page_daemon.control("GET", f"/tickets/{link.ticket}").json()["zeroed"]
    print(f"memory of the tab: {memory.most / MiB:.0f} MiB")
    assert memory.most < MOST_MEMORY


@pytest.mark.parametrize(
    ("size", "content"),
    [(1, b"x"), (4 * MiB + 1, b"\0" * 4 * MiB + b"x"), (5 * MiB - 3, b"a" * 300_001), (3 * MiB, b"")],
    ids=["one byte", "a byte after a block", "an odd size", "zeros only"],
)
def test_odd_disk_is_uploaded(
    browser: "Browser", tmp_path: Path, make_link: MakeLink, size: int, content: bytes
) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(content)
    os.truncate(disk, size)
    link = make_link(size)
    link.path.write_bytes(b"\xff" * size)  # what was there before has to go
    browser.open(link.url)
    browser.upload(disk)
    browser.wait("The disk is safe")
    assert same(disk, link.path)


@pytest.mark.parametrize("place", ["drop", "title"], ids=["on the field", "beside it"])
def test_file_that_is_dropped_is_chosen(browser: "Browser", tmp_path: Path, make_link: MakeLink, place: str) -> None:
    disk = tmp_path / "dropped.raw"
    disk.write_bytes(b"x" * MiB)
    browser.open(make_link(MiB).url)
    browser.drop(disk, place)
    browser.wait("Ready to upload")
    assert "dropped.raw" in browser.text("facts")


def test_rest_of_a_larger_disk_becomes_zero(browser: "Browser", tmp_path: Path, make_link: MakeLink) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * 700_000)
    link = make_link(9 * MiB)
    link.path.write_bytes(b"\xff" * 9 * MiB)
    browser.open(link.url)
    browser.choose(disk)
    browser.wait("Ready to upload")
    assert "what the file does not have becomes zeros" in browser.text("facts")
    browser.press("Upload")
    browser.wait("The disk is safe")
    assert link.path.read_bytes() == b"x" * 700_000 + bytes(9 * MiB - 700_000)


def test_file_grows_to_the_size_of_the_source(browser: "Browser", make_disk: MakeDisk, make_link: MakeLink) -> None:
    disk = make_disk("disk", 8 * MiB, 2)
    link = make_link(64 * MiB)
    os.truncate(link.path, 0)
    browser.open(link.url)
    browser.upload(disk)
    browser.wait("The disk is safe")
    assert same(disk, link.path)


def test_disk_that_somebody_else_changes_is_mended(
    browser: "Browser", page_daemon: Daemon, make_disk: MakeDisk, make_link: MakeLink
) -> None:
    disk = make_disk("disk", 64 * MiB, 12)
    link = make_link(64 * MiB, rate=16 * MiB)
    browser.open(link.url)
    browser.upload(disk)
    browser.until(30)
    with page_daemon.connect("tls") as other:
        for place in (0, 70_000, 5 * MiB):
            answer = other.put(f"/images/{link.ticket}?flush=n", b"!", {"Content-Range": f"bytes {place}-{place}/*"})
            assert answer.status == 200
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)


@pytest.fixture
def late(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon whose comparisons take longer than the answer to a finalize."""
    with Daemon(certificates, {"ui": {"enable": True}}, program="tests.support.slowfinalize") as daemon:
        (daemon.directory / "late").touch()
        yield daemon


def begin_late(browser: "Browser", late: Daemon, disk: Path, directory: Path) -> Path:
    """Begin to upload a disk to an image of that daemon, and return the image."""
    (image := directory / "image").touch()
    browser.open(f"https://localhost:{late.port}/ui/#{late.add_ticket(image, disk.stat().st_size)}")
    browser.upload(disk)
    return image


def test_disk_that_cannot_be_read_back_is_told(
    browser: "Browser", late: Daemon, make_disk: MakeDisk, tmp_path: Path
) -> None:
    broken = late.directory / "broken"
    broken.touch()
    image = begin_late(browser, late, disk := make_disk("disk", 4 * MiB, 1), tmp_path)
    browser.wait("The storage of the server fails")
    broken.unlink()
    browser.press("Try again")
    browser.wait("The disk is safe")
    assert same(image, disk)


def test_difference_that_is_found_late_is_mended(
    browser: "Browser", late: Daemon, make_disk: MakeDisk, tmp_path: Path
) -> None:
    held = late.directory / "held"
    held.touch()
    image = begin_late(browser, late, disk := make_disk("disk", 4 * MiB, 1), tmp_path)
    browser.wait("Comparing")
    with open(image, "r+b") as file:
        file.write(b"somebody else")
    held.unlink()
    browser.wait("The disk is safe")
    assert same(image, disk)


def test_link_that_was_used_says_so(browser: "Browser", make_disk: MakeDisk, make_link: MakeLink) -> None:
    link = make_link(4 * MiB)
    browser.open(link.url)
    browser.upload(make_disk("disk", 4 * MiB, 1))
    browser.wait("The disk is safe")
    browser.new_tab()
    browser.open(link.url)
    assert browser.title == "The disk is safe"
    assert "This link can do nothing more" in browser.text("lead")
    browser.close_tab()


# What is refused before anything is sent


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"QFI\xfb", "qcow2 image.*Convert it first"),
        (b"KDMV", "VMware disk.*Convert it first"),
        (b"vhdxfile", "VHDX.*Convert it first"),
        (b"\0" * 257 + b"ustar", "tar archive.*Unpack"),
        (b"\x1f\x8b\x08", "gzip.*Decompress it first"),
    ],
    ids=["qcow2", "vmdk", "vhdx", "ova", "gzip"],
)
def test_other_format_is_refused_with_what_to_do(
    browser: "Browser", tmp_path: Path, make_link: MakeLink, head: bytes, told: str
) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(head + bytes(64 * KiB))
    link = make_link(MiB)
    browser.open(link.url)
    browser.choose(disk)
    browser.expect_notice(f"{told}")
    assert re.search(r"expects the plain bytes of the disk \(raw\)", browser.text("notice"))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("vm.qcow2", "qemu-img convert -O raw vm.qcow2 disk.raw"),
        ("my disk.qcow2", 'qemu-img convert -O raw "my disk.qcow2" disk.raw'),
        ("disk.raw", "qemu-img convert -O raw disk.raw converted.raw"),
        ("Größe.img", "qemu-img convert -O raw Größe.img disk.raw"),
        ("$(touch x)", "qemu-img convert -O raw FILE disk.raw"),
        ("-rf", "qemu-img convert -O raw FILE disk.raw"),
        ("a'b", "qemu-img convert -O raw FILE disk.raw"),
    ],
)
def test_command_that_helps_is_copied(
    browser: "Browser", tmp_path: Path, make_link: MakeLink, name: str, command: str
) -> None:
    """With the name of the file, unless a shell could take it for more."""
    (tmp_path / name).write_bytes(b"QFI\xfb" + bytes(4096))
    browser.open(make_link(MiB).url)
    browser.choose(tmp_path / name)
    browser.expect_notice("Convert it first:$")
    assert browser.text("line") == command
    browser.press_copy()
    eventually(lambda: browser.text("said") == "Copied", "it is said", timeout=10)
    assert browser.clipboard() == command


def test_only_a_file_that_needs_a_command_has_one(browser: "Browser", tmp_path: Path, make_link: MakeLink) -> None:
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + bytes(4096))
    (tmp_path / "qcow2").write_bytes(b"QFI\xfb" + bytes(4096))
    (tmp_path / "raw").write_bytes(bytes(4096))
    browser.open(make_link(MiB).url)
    browser.choose(tmp_path / "qcow2")
    eventually(lambda: browser.text("line"), "there is a command", timeout=10)
    browser.choose(tmp_path / "zip")
    eventually(lambda: not browser.text("line"), "there is none", timeout=10)
    browser.choose(tmp_path / "qcow2")
    eventually(lambda: browser.text("line"), "there is a command", timeout=10)
    browser.choose(tmp_path / "raw")
    browser.wait("Ready to upload")
    assert not browser.text("line")


def test_page_says_whose_server_it_is(browser: "Browser", make_link: MakeLink) -> None:
    browser.open(make_link(MiB).url)
    assert browser.text("server") == "localhost"


def test_page_speaks_one_language(browser: "Browser", make_link: MakeLink) -> None:
    """The button of a file input, and its text without a file, are of the browser's language: they are not shown."""
    browser.open(make_link(MiB).url)
    assert [line for line in browser.text("choose").splitlines() if line] == ["Choose the disk file", "or drop it here"]
    size = browser.driver.execute_script("return document.getElementById('file').getBoundingClientRect().width")
    assert size <= 1


def test_file_larger_than_the_ticket_is_refused(browser: "Browser", tmp_path: Path, make_link: MakeLink) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(MiB + 1))
    browser.open(make_link(MiB).url)
    browser.choose(disk)
    browser.expect_notice(r"1,048,577 bytes.*more than the.*1,048,576 bytes")


def test_empty_file_is_refused(browser: "Browser", tmp_path: Path, make_link: MakeLink) -> None:
    (tmp_path / "empty").touch()
    browser.open(make_link(MiB).url)
    browser.choose(tmp_path / "empty")
    browser.expect_notice("0 bytes")


def test_name_of_a_file_is_text(browser: "Browser", tmp_path: Path, make_link: MakeLink) -> None:
    name = "<img src=x onerror=alert(1)>&amp;\u202egnp.raw"
    (tmp_path / name).write_bytes(b"x" * 4096)
    browser.open(make_link(4096).url)
    browser.choose(tmp_path / name)
    browser.wait("Ready to upload")
    assert name in browser.text("facts")
    assert browser.driver.execute_script("return document.images.length") == 0
