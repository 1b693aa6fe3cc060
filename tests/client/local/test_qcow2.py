# SPDX-License-Identifier: Apache-2.0
"""qcow2 images that the client reads and writes by the C extension, and those that it leaves to qemu."""

import contextlib
import errno
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from imageio_daemon.client import Settings, download, info, upload
from imageio_daemon.client.errors import ImageInUse, LocalError, Stopped
from imageio_daemon.client.local.local_image import execute
from imageio_daemon.client.local.qcow2 import NewQcow2, UpdatedQcow2, qcow2_source
from imageio_daemon.client.local.qcow2_image import Qcow2Image, create_qcow2
from imageio_daemon.client.local.qemu import QemuSource
from imageio_daemon.client.local.source import Source
from tests.client.local.test_formats import converted, qemu_img, same
from tests.ioutil.syscall_table import real_pread, replaced
from tests.qcow2.disk import qemu_io
from tests.qcow2.golden import poke
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern
from tests.support.locks import locks, served
from tests.support.realstorage import missing, mounted

#: Options of an image that is encrypted.
ENCRYPTED = ("--object", "secret,id=key,data=x", "-o", "encrypt.format=luks,encrypt.key-secret=key,encrypt.iter-time=1")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A raw disk of data and holes."""
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(8 * MiB)
        file.seek(MiB + 512)
        file.write(pattern(3 * MiB))
    return path


@pytest.fixture
def top(tmp_path: Path, disk: Path) -> Path:
    """An image above one in another directory, by a relative name."""
    (tmp_path / "below").mkdir()
    converted(disk, "qcow2").rename(tmp_path / "below" / "base.qcow2")
    qemu_img("create", "-f", "qcow2", "-b", "below/base.qcow2", "-F", "qcow2", tmp_path / "top.qcow2")
    return tmp_path / "top.qcow2"


@pytest.fixture
def no_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def content(source: Source) -> bytes:
    found = bytearray(source.size)
    source.read(0, memoryview(found))
    return bytes(found)


# Without a program of qemu


def test_chain_goes_up(
    daemon: Daemon, tls: Settings, top: Path, disk: Path, new_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = new_image(size=8 * MiB, sparse=True)
    monkeypatch.setenv("PATH", "/nonexistent")
    done = upload(top, daemon.url(target.ticket), settings=tls, verify=True)
    assert target.content() == disk.read_bytes()
    assert done.progress.data < 4 * MiB  # holes are not read
    assert info(top).size == 8 * MiB


def test_new_image_comes_down(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = daemon.url(new_image(path=disk, ops=["read"]).ticket)
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nonexistent")
        download(url, tmp_path / "copy.qcow2", settings=tls, verify=True)
    same(disk, tmp_path / "copy.qcow2", "qcow2")
    qemu_img("check", "-f", "qcow2", tmp_path / "copy.qcow2")
    assert not (tmp_path / "copy.qcow2.part").exists()


def test_image_is_updated(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = converted(disk, "qcow2")
    with disk.open("r+b") as file:
        file.seek(5 * MiB)
        file.write(pattern(MiB, 3))
    url = daemon.url(new_image(path=disk, ops=["read"]).ticket)
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nonexistent")
        done = download(url, copy, settings=tls, update=True)
    assert done.progress.data < 3 * MiB
    same(disk, copy, "qcow2")
    qemu_img("check", "-f", "qcow2", copy)


@pytest.mark.usefixtures("no_qemu")
def test_wrong_size_of_an_image_to_update_is_told(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.touch()
    create_qcow2(path, MiB)
    UpdatedQcow2.check(path, MiB)
    with pytest.raises(LocalError, match=r"image of 1048576 bytes, and the other one has 2097152"):
        UpdatedQcow2.check(path, 2 * MiB)


@pytest.mark.usefixtures("no_qemu")
def test_file_that_has_something_becomes_no_image(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(LocalError, match=r"can't make a qcow2 image in .*file: File exists"):
        create_qcow2(tmp_path / "file", MiB)


def test_opening_makes_no_extents(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C alone sees whether the image is whole: Python would need 16 times as long."""
    with monkeypatch.context() as without:
        without.setattr("imageio_daemon.client.local.qcow2_image.Extent", Mock(side_effect=AssertionError))
        source = qcow2_source(top)
    with contextlib.closing(source):
        assert sum(extent.length for extent in source.extents()) == 8 * MiB


# What is left to qemu


def test_image_that_only_qemu_opens_is_left_to_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={tmp_path / 'data'}", image, "1M")
    caplog.set_level(logging.INFO)
    with contextlib.closing(qcow2_source(image)) as source:
        assert isinstance(source, QemuSource)
    assert f"{image} is left to qemu-nbd: its data is in another file" in caplog.text


def test_why_an_image_needs_qemu_is_told_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={tmp_path / 'data'}", image, "1M")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LocalError, match=r"can't run qemu-nbd, which .*image\.qcow2 needs because its data is in"):
        qcow2_source(image)


def test_file_below_in_a_format_of_qemu_is_left_to_it(tmp_path: Path, disk: Path) -> None:
    base = converted(disk, "vmdk")
    qemu_img("create", "-f", "qcow2", "-b", base, "-F", "vmdk", tmp_path / "top.qcow2")
    with contextlib.closing(qcow2_source(tmp_path / "top.qcow2")) as source:
        assert isinstance(source, QemuSource)
        assert content(source) == disk.read_bytes()


def test_image_with_bitmaps_is_updated_by_qemu(tmp_path: Path, disk: Path) -> None:
    image = converted(disk, "qcow2")
    qemu_img("bitmap", "--add", "-f", "qcow2", image, "since")
    target = UpdatedQcow2(image)
    target.start(8 * MiB)
    target.write(0, memoryview(pattern(KiB)))
    target.finish()
    with disk.open("r+b") as file:
        file.write(pattern(KiB))
    same(disk, image, "qcow2")


# Files that change, and files that others use


def test_image_that_grows_is_read_if_it_is_shared(tmp_path: Path) -> None:
    image = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", image, "64M")
    with contextlib.closing(qcow2_source(image, shared=True)) as source:
        qemu_io(image, "write -P 7 8M 16M")
        buffer = bytearray(MiB)
        source.read(20 * MiB, memoryview(buffer))
        assert bytes(buffer) in (b"\7" * MiB, bytes(MiB))  # as new as the tables that were read
        assert sum(extent.length for extent in source.extents()) == 64 * MiB


def test_path_through_the_root_of_another_namespace_is_followed(tmp_path: Path) -> None:
    """Its link says only "/"."""
    if reason := missing("ext4"):
        pytest.skip(reason)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory, byte in ((ours, 1), (theirs, 2)):
        directory.mkdir()
        qemu_img("create", "-f", "qcow2", directory / "image.qcow2", "1M")
        qemu_io(directory / "image.qcow2", f"write -P {byte} 0 1M")
    script = f"mount --bind {theirs} {ours} && echo ready && read end"
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        path = Path(f"/proc/{other.pid}/root{ours}/image.qcow2")
        with contextlib.closing(qcow2_source(path)) as source:
            assert content(source) == b"\2" * MiB
        other.communicate(b"\n")


def test_image_that_is_replaced_is_read_as_it_was(top: Path, disk: Path) -> None:
    with contextlib.closing(qcow2_source(top)) as source:
        top.with_name("other").touch()
        top.with_name("other").replace(top)
        source.check()
        assert content(source) == disk.read_bytes()


def test_new_image_is_locked_until_it_is_complete(tmp_path: Path) -> None:
    target = NewQcow2(tmp_path / "image")
    target.start(MiB)
    with pytest.raises(LocalError, match=r"image\.part is in use by"):
        Qcow2Image(tmp_path / "image.part", "image", writable=True)
    target.finish()
    assert locks(tmp_path / "image") == set()


# Damage, and stops


def stopping(target: NewQcow2 | UpdatedQcow2) -> contextlib.AbstractContextManager[None]:
    """Stop a target at the first read of C."""

    def stop(fd: int, buffer: memoryview, offset: int) -> int:
        target.stop()
        return real_pread(fd, buffer, offset)

    return replaced(pread=stop)


def test_stop_ends_the_opening_of_an_image_to_update(disk: Path) -> None:
    image = converted(disk, "qcow2")
    target = UpdatedQcow2(image)
    with stopping(target), pytest.raises(Stopped):
        target.start(8 * MiB)
    target.abandon()
    assert locks(image) == set()


def test_stop_ends_the_opening_of_an_earlier_image_which_stays(tmp_path: Path) -> None:
    target = NewQcow2(tmp_path / "image", continues=True)
    target.start(MiB)
    target.keep()
    again = NewQcow2(tmp_path / "image", continues=True)
    with stopping(again), pytest.raises(Stopped):
        again.resume(MiB)
    assert again.keep()
    assert locks(tmp_path / "image.part") == set()


def test_new_image_that_is_stopped_is_not_complete(tmp_path: Path) -> None:
    target = NewQcow2(tmp_path / "image")
    target.start(MiB)
    target.write(0, memoryview(pattern(KiB)))
    target.stop()
    with pytest.raises(Stopped):
        target.finish()
    target.abandon()
    assert not list(tmp_path.iterdir())


def test_what_a_stopped_download_keeps_is_flushed(tmp_path: Path) -> None:
    target = NewQcow2(tmp_path / "image", continues=True)
    target.start(MiB)
    target.write(0, memoryview(pattern(KiB)))
    target.stop()
    assert target.keep()
    again = NewQcow2(tmp_path / "image", continues=True)
    left = again.resume(MiB)
    assert left is not None
    assert content(left)[:KiB] == pattern(KiB)
    again.abandon()


def test_earlier_image_that_is_in_use_stays(tmp_path: Path) -> None:
    target = NewQcow2(tmp_path / "image", continues=True)
    target.start(MiB)
    target.keep()
    with served(tmp_path / "image.part", "qcow2"):
        again = NewQcow2(tmp_path / "image", continues=True)
        with pytest.raises(ImageInUse, match=r"image\.part is in use by qemu-nbd \(pid \d+\): end that first$"):
            again.resume(MiB)
        again.keep()
    assert (tmp_path / "image.part").exists()


def test_earlier_image_that_only_qemu_writes_goes_on(tmp_path: Path) -> None:
    target = NewQcow2(tmp_path / "image", continues=True)
    target.start(MiB)
    target.write(0, memoryview(pattern(KiB)))
    target.keep()
    qemu_img("bitmap", "--add", "-f", "qcow2", tmp_path / "image.part", "since")
    again = NewQcow2(tmp_path / "image", continues=True)
    left = again.resume(MiB)
    assert left is not None
    assert content(left)[:KiB] == pattern(KiB)
    again.abandon()


def test_earlier_image_that_cant_be_written_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    NewQcow2(tmp_path / "image", continues=True).keep()
    (tmp_path / "image.part").write_bytes(b"no image")
    target = NewQcow2(tmp_path / "image", continues=True)
    assert target.resume(MiB) is None
    assert "can't open" in caplog.text
    target.start(MiB)
    target.abandon()


def test_full_file_system_is_told(tmp_path: Path) -> None:
    if reason := missing("ext4"):
        pytest.skip(reason)
    with mounted("ext4", tmp_path) as place:
        target = NewQcow2(place / "image")
        target.start(1 << 40)
        data = memoryview(pattern(8 * MiB))
        with pytest.raises(LocalError, match=r"can't write .*image\.part at byte \d+: No space left on device"):  # noqa: PT012
            for offset in range(0, 1 << 40, len(data)):
                target.write(offset, data)
        target.stop()
        target.abandon()
        assert not (place / "image.part").exists()


def test_failure_of_the_last_flush_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: Any, kind: int, *more: Any) -> Any:
        completion = execute(handle, kind, *more)
        completion.error = completion.error or errno.EIO
        return completion

    path = tmp_path / "image"
    path.touch()
    create_qcow2(path, MiB)
    image = Qcow2Image(path, "image", writable=True)
    monkeypatch.setattr("imageio_daemon.client.local.qcow2_image.execute", fail)
    with pytest.raises(LocalError, match="can't close image: Input/output error"):
        image.close()
    assert not image.ended_well
    monkeypatch.undo()
    again = Qcow2Image(path, "image", writable=True)  # nothing of this process has it open
    again.close()


def test_image_whose_files_cant_be_seen_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image"
    path.touch()
    create_qcow2(path, MiB)
    monkeypatch.setattr("imageio_daemon.client.local.qcow2.FormatSource", Mock(side_effect=OSError(errno.EIO, "x")))
    with pytest.raises(OSError, match="x"):
        qcow2_source(path)
    assert locks(path) == set()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("-u", "-b", "/nonexistent", "-F", "raw"),
            "Could not open backing file: Could not open '/nonexistent': No such",
        ),
        (
            ENCRYPTED,
            r"Parameter 'encrypt\.key-secret' .* \(it is encrypted: qemu-img convert makes a copy that is not\)$",
        ),
    ],
)
def test_what_qemu_says_of_an_image_is_told_with_what_to_do(tmp_path: Path, options: Sequence[str], told: str) -> None:
    image = tmp_path / "an image"
    qemu_img("create", "-f", "qcow2", *options, image, "1M")
    with pytest.raises(LocalError, match=rf"^can't open {image}: {told}"):
        qcow2_source(image)


def test_image_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, path)

    image = tmp_path / "image"
    qemu_img("create", "-f", "qcow2", image, "1M")
    with (
        replaced(open=refuse),
        pytest.raises(LocalError, match=r"can't open .*image to write to it: Permission denied$"),
    ):
        UpdatedQcow2(image).start(MiB)


def test_image_that_is_marked_as_corrupt_is_not_updated(tmp_path: Path) -> None:
    image = tmp_path / "image"
    qemu_img("create", "-f", "qcow2", image, "1M")
    poke(image, 79, b"\2")
    told = r"qcow2: Image is corrupt; .* \(repair it: qemu-img check -r all\)$"
    with pytest.raises(LocalError, match=rf"^can't open {image}: {told}"):
        UpdatedQcow2(image).start(MiB)


def test_missing_file_below_is_told_where_there_is_no_qemu(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top.parent / "below" / "base.qcow2").unlink()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        LocalError, match=r"needs because not all of its files can be opened \(No such file .*: it is not installed$"
    ):
        qcow2_source(top)
