# SPDX-License-Identifier: Apache-2.0
"""Bitmaps of qcow2 images and exports that tell nothing, and downloads by the bitmap of a ticket."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import ChecksumMismatch, Downloaded, Settings, Uploaded, Usage, checksum, download, upload
from imageio_daemon.client.transfer import base as base_module
from tests.client.programs import run
from tests.client.transfer.test_base import BLOCK, SIZE, change, listed, make_marked, raw
from tests.client.transfer.test_continued_download import without
from tests.client.transfer.test_dirty import guest_writes, qemu_img
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.nbdservers import qemu_nbd
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType

pytestmark = pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="qemu-nbd is not installed")

Up = Callable[..., Uploaded]
Down = Callable[..., Downloaded]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk with a bitmap of what is written from now on."""
    return make_marked(tmp_path / "disk.qcow2")


@pytest.fixture
def copy(disk: Path, tmp_path: Path) -> Path:
    """A raw copy of the base."""
    return raw(disk, tmp_path / "copy")


@pytest.fixture
def base(copy: Path) -> str:
    return checksum(copy)


# Uploads


@pytest.fixture
def up(daemon: Daemon, tls: Settings, copy: Path, base: str) -> Up:
    """Update the copy, on the server, from a source."""

    def update(source: Path | str, bitmap: str = "since-full") -> Uploaded:
        url = daemon.url(daemon.add_ticket(copy, SIZE))
        return upload(source, url, settings=tls, update=True, base=base, bitmap=bitmap)

    return update


def test_bitmap_that_an_image_does_not_have_is_told(
    up: Up, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(disk)
    up(disk, "other")
    assert "disk.qcow2 has no bitmap other" in caplog.text
    assert "comparing all" in caplog.text
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


def test_bitmap_that_an_export_does_not_tell_is_told(
    up: Up, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(disk)
    with qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=since-full") as server:
        up(server.uri, "since")
    assert "nobody knows what has changed in the source: comparing all" in caplog.text
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


def test_disabled_bitmap_is_not_believed(
    up: Up, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    qemu_img("bitmap", "--disable", "-f", "qcow2", disk, "since-full")
    change(disk)
    up(disk)
    assert "the bitmap since-full of" in caplog.text
    assert "is disabled" in caplog.text
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


def test_bitmap_that_a_crash_has_left_in_use_is_not_believed(
    up: Up, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crash: list[str | Path] = ["qemu-io", "-c", "write -P 7 30M 3M", "-c", "abort", disk]
    subprocess.run(crash, check=False, stdout=subprocess.DEVNULL)
    up(disk)
    assert "is in use, or was left so by a crash" in caplog.text
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


def test_bitmap_of_a_layer_below_is_not_believed(
    up: Up, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    top = tmp_path / "top.qcow2"
    qemu_img("create", "-q", "-f", "qcow2", "-b", disk, "-F", "qcow2", top)
    change(top)
    up(top)
    assert "top.qcow2 has no bitmap since-full" in caplog.text
    assert copy.read_bytes() == raw(top, tmp_path / "wanted").read_bytes()


def test_bitmap_of_an_image_in_an_archive_tells(
    up: Up, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(disk)
    subprocess.run(["tar", "--create", "--file", tmp_path / "disk.ova", disk.name], cwd=disk.parent, check=True)
    up(tmp_path / "disk.ova")
    assert not caplog.text
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


def test_raw_file_has_no_bitmap(up: Up, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(pattern(MiB))
    with pytest.raises(Usage, match="only a qcow2 image in a file or an export of an NBD server has a bitmap"):
        up(tmp_path / "raw")


@pytest.mark.parametrize("more", [{"base": "0" * 64}, {"bitmap": "since-full"}])
def test_base_and_bitmap_belong_together(more: dict[str, str]) -> None:
    with pytest.raises(Usage, match="base and bitmap belong together"):
        upload("disk.qcow2", "https://localhost/images/x", update=True, **more)  # type: ignore[arg-type]


def test_command_has_both(daemon: Daemon, disk: Path, copy: Path, base: str, tmp_path: Path) -> None:
    change(disk)
    url = daemon.url(daemon.add_ticket(copy, SIZE))
    done = run("upload", "--update", "--base", base, "--bitmap", "since-full", "--cafile", daemon.cafile, disk, url)
    assert done.status == 0, done
    assert "comparing all" not in done.err
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


# Downloads


@pytest.fixture
def ticket(daemon: Daemon, disk: Path) -> Callable[[], str]:
    """Return the URL of the disk, whose ticket has the bitmap."""
    return lambda: daemon.url(
        daemon.add_ticket(disk, SIZE, format="qcow2", ops=["read"], dirty=True, bitmap="since-full")
    )


@pytest.fixture
def down(ticket: Callable[[], str], tls: Settings, base: str) -> Down:
    """Update a local image from the disk."""
    return lambda target: download(ticket(), target, settings=tls, update=True, base=base)


@pytest.mark.parametrize("is_qcow2", [False, True], ids=["raw", "qcow2"])
def test_server_reads_where_the_bitmap_of_the_ticket_tells(
    down: Down, disk: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_qcow2: bool
) -> None:
    change(disk)
    monkeypatch.setattr(base_module, "SAMPLES", 2)
    counts = listed(monkeypatch)
    target = copy
    if is_qcow2:
        target = tmp_path / "copy.qcow2"
        qemu_img("convert", "-f", "raw", "-O", "qcow2", copy, target)
    done = down(target)
    assert done.checksum == checksum(target) == checksum(raw(disk, tmp_path / "wanted"))
    assert done.progress.resumed == SIZE - 4 * BLOCK
    assert counts["blocks"] == 2 * BLOCK, "of the sample alone"


def test_copy_that_is_not_the_base_is_compared_as_a_whole(
    down: Down, disk: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(disk)
    with copy.open("r+b") as f:
        f.seek(50 * MiB)
        f.write(b"x")
    down(copy)
    assert "the target is not the base" in caplog.text
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


@pytest.fixture
def late(disk: Path, copy: Path, base: str) -> Path:
    """The disk with a bitmap that began after the base."""
    qemu_img("bitmap", "--remove", "-f", "qcow2", disk, "since-full")
    guest_writes(disk, "write -P 9 42M 2M")
    qemu_img("bitmap", "--add", "-f", "qcow2", disk, "since-full")
    change(disk)
    return disk


def test_sample_finds_a_bitmap_that_began_later(
    down: Down, late: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    down(copy)
    assert "it began later" in caplog.text
    assert copy.read_bytes() == raw(late, tmp_path / "wanted").read_bytes()


def test_checksum_finds_what_the_sample_has_missed(
    down: Down, late: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_module, "SAMPLES", 0)
    with pytest.raises(ChecksumMismatch, match="update without --base: its bitmap may have begun later"):
        down(copy)


def test_larger_device_keeps_its_rest(
    down: Down, disk: Path, copy: Path, tmp_path: Path, make_storage: Callable[[StorageType], Storage]
) -> None:
    change(disk)
    device = make_storage(next(t for t in STORAGE_TYPES if t.is_block)).make(SIZE + 4 * MiB)
    with device.open("r+b") as f:
        f.write(copy.read_bytes() + b"\xff" * 4 * MiB)
    assert down(device).progress.resumed == SIZE - 4 * BLOCK
    assert device.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes() + b"\xff" * 4 * MiB


@pytest.mark.parametrize("feature", [None, "extents", "checksum_blocks"])
def test_servers_that_cannot_tell_let_all_be_compared(
    daemon: Daemon,
    tls: Settings,
    new_image: MakeImage,
    copy: Path,
    base: str,
    monkeypatch: pytest.MonkeyPatch,
    feature: str | None,
) -> None:
    image = new_image(pattern(SIZE), ops=["read"])
    if feature is not None:
        without(monkeypatch, feature)
    download(daemon.url(image.ticket), copy, settings=tls, update=True, base=base)
    assert copy.read_bytes() == pattern(SIZE)


def test_base_is_for_an_update() -> None:
    with pytest.raises(Usage, match="base is for an update"):
        download("https://localhost/images/x", "copy", base="0" * 64)


def test_command_has_a_base(
    daemon: Daemon, ticket: Callable[[], str], disk: Path, copy: Path, base: str, tmp_path: Path
) -> None:
    change(disk)
    done = run("download", "--update", "--base", base, "--cafile", daemon.cafile, ticket(), copy)
    assert done.status == 0, done
    assert "comparing all" not in done.err
    assert copy.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()
