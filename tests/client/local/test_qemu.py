# SPDX-License-Identifier: Apache-2.0
"""Images that qemu-nbd reads for a transfer."""

import contextlib
import errno
import json
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon.client.errors import LocalError, Stopped
from imageio_daemon.client.local import qemu_nbd as qemu_nbd_module
from imageio_daemon.client.local.archive import Member
from imageio_daemon.client.local.layers import refuse_cut
from imageio_daemon.client.local.qemu import QemuSource, QemuTarget
from imageio_daemon.client.local.qemu_nbd import PrivateQemuNbd
from tests.client.local.test_formats import qemu_img
from tests.support.images import MiB, pattern
from tests.support.nbdservers import qemu_nbd

KiB = 1024


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a qemu-nbd that hangs be killed soon."""
    monkeypatch.setattr(qemu_nbd_module, "STOPPED_TIMEOUT", 0.1)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[QemuSource]:
    path = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", path, "1M")
    source = QemuSource(path, "qcow2")
    yield source
    source.close()


@pytest.mark.usefixtures("impatient")
def test_stop_ends_a_read_that_the_storage_does_not_answer(source: QemuSource) -> None:
    source._image._process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(source.read, 0, memoryview(bytearray(KiB)))
        source.stop()
        assert isinstance(read.exception(), Stopped)


@pytest.mark.usefixtures("impatient")
def test_stop_ends_a_write_that_the_storage_does_not_answer(tmp_path: Path) -> None:
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    assert target._image is not None
    target._image._process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        write = pool.submit(target.write, 0, memoryview(bytes(KiB)))
        target.stop()
        assert isinstance(write.exception(), Stopped)
    target.abandon()
    assert not list(tmp_path.iterdir())


def test_qemu_nbd_that_is_stopped_closes_the_image(tmp_path: Path) -> None:
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    target.write(0, memoryview(bytes(KiB)))
    target.stop()
    target.abandon()
    assert target._image is not None
    assert target._image._process.returncode == 0


def test_target_that_is_stopped_before_qemu_nbd_has_ended_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    server = target._image
    assert server is not None

    def stopped_and_failed() -> None:
        target.stop()
        server._process.kill()

    monkeypatch.setattr(server, "flush", stopped_and_failed)
    with pytest.raises(Stopped):
        target.finish()
    assert not (tmp_path / "image.qcow2").exists()
    target.abandon()
    assert not list(tmp_path.iterdir())


def test_end_of_qemu_nbd_without_stop_is_an_error(source: QemuSource) -> None:
    source._image._process.kill()
    with pytest.raises(LocalError):
        source.read(0, memoryview(bytearray(KiB)))
    with pytest.raises(LocalError, match="qemu-nbd failed"):
        source.close()


def test_end_of_qemu_nbd_before_the_last_check_is_an_error(source: QemuSource) -> None:
    source._image._process.kill()
    source._image._process.wait()
    with pytest.raises(LocalError, match=r"can't see whether .* has changed"):
        source.check()
    with pytest.raises(LocalError, match="qemu-nbd failed"):
        source.close()


def test_nothing_is_left_of_a_qemu_nbd_that_has_ended_before_it_is_stopped(source: QemuSource) -> None:
    server = source._image
    server._process.kill()
    server._process.wait()
    source.stop()
    source.close()
    assert not Path(server._directory).exists()


# What images are made of


def layered(path: Path, backing: str) -> Path:
    """Return a new image above a raw one."""
    qemu_img("create", "-f", "qcow2", "-u", "-b", backing, "-F", "raw", path, "1M")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.raw"
    path.write_bytes(pattern(KiB * KiB))
    return path


def content(source: QemuSource) -> bytes:
    found = bytearray(source.size)
    source.read(0, memoryview(found))
    return bytes(found)


@pytest.mark.parametrize("kind", ["uri", "json"])
def test_backing_layer_may_be_an_export_of_a_server_for_one_client(tmp_path: Path, base: Path, kind: str) -> None:
    # It ends with its first client, so nobody may look at it before the image is read.
    with qemu_nbd(base, "raw", "--read-only") as server:
        node = {"driver": "nbd", "server": {"type": "unix", "path": str(server.socket)}}
        name = server.uri if kind == "uri" else "json:" + json.dumps({"driver": "raw", "file": node})
        with contextlib.closing(QemuSource(layered(tmp_path / "top.qcow2", name), "qcow2")) as source:
            assert content(source) == base.read_bytes()
            assert source.identity is None
            source.check()
            os.utime(tmp_path / "top.qcow2")
            with pytest.raises(LocalError, match=r"top\.qcow2 was changed"):
                source.check()


def test_file_that_a_json_name_leads_to_is_a_layer(tmp_path: Path, base: Path) -> None:
    node = {"driver": "raw", "file": {"driver": "file", "filename": str(base)}}
    top = layered(tmp_path / "top.qcow2", "json:" + json.dumps(node))
    with contextlib.closing(QemuSource(top, "qcow2")) as source:
        assert content(source) == base.read_bytes()
        os.utime(base)
        with pytest.raises(LocalError, match=r"base\.raw was changed"):
            source.check()


@pytest.mark.parametrize("is_uri", [False, True])
def test_image_of_files_is_known_again(tmp_path: Path, base: Path, is_uri: bool) -> None:
    top = layered(tmp_path / "top.qcow2", f"file:{base}" if is_uri else "base.raw")
    with contextlib.closing(QemuSource(top, "qcow2")) as source:
        first = source.identity
    with contextlib.closing(QemuSource(top, "qcow2")) as source:
        assert source.identity == first is not None
    os.utime(base)
    with contextlib.closing(QemuSource(top, "qcow2")) as source:
        assert source.identity != first


def test_data_file_is_a_part_of_the_image(tmp_path: Path) -> None:
    image = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={tmp_path / 'data'}", image, "1M")
    with contextlib.closing(QemuSource(image, "qcow2")) as source:
        os.utime(tmp_path / "data")
        with pytest.raises(LocalError, match="data was changed"):
            source.check()


def test_extents_of_a_vmdk_are_parts_of_the_image(tmp_path: Path, base: Path) -> None:
    image = tmp_path / "image.vmdk"
    qemu_img("convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=monolithicFlat", base, image)
    with contextlib.closing(QemuSource(image, "vmdk")) as source:
        os.utime(tmp_path / "image-flat.vmdk")
        with pytest.raises(LocalError, match=r"image-flat\.vmdk was changed"):
            source.check()


def test_member_that_names_something_else_is_not_known_again(tmp_path: Path, base: Path) -> None:
    with qemu_nbd(base, "raw", "--read-only", "--persistent") as server:
        top = layered(tmp_path / "top.qcow2", server.uri)
        (tmp_path / "a.ova").write_bytes((bytes(512) + top.read_bytes()).ljust(MiB))
        member = Member("top.qcow2", 512, top.stat().st_size)
        with contextlib.closing(QemuSource(tmp_path / "a.ova", "qcow2", member)) as source:
            assert (content(source) == base.read_bytes(), source.identity) == (True, None)


def test_files_that_cant_be_seen_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", path, "1M")
    monkeypatch.setattr(qemu_nbd_module.PrivateQemuNbd, "_descriptors", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(LocalError, match=r"can't see which files .*image\.qcow2 is made of: Permission denied"):
        QemuSource(path, "qcow2")
    assert not list((tmp_path / "temporary").iterdir())


# Temporary files


def test_name_of_the_temporary_directory_may_be_longer_than_that_of_a_socket(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 200)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    target.write(0, memoryview(base.read_bytes()))
    target.finish()
    with contextlib.closing(QemuSource(tmp_path / "image.qcow2", "qcow2")) as source:
        assert content(source) == base.read_bytes()
    assert list(long.iterdir()) == []


def test_temporary_directory_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", path, "1M")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(LocalError, match=r"can't make temporary files, which .*image\.qcow2 needs: No such file"):
        QemuSource(path, "qcow2")


def test_temporary_files_that_cant_all_be_made_leave_none(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    used, (soft, hard) = os.open("/", os.O_PATH), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))  # enough to make a directory
    try:
        with pytest.raises(LocalError, match=r"can't make temporary files, .* Too many open files"):
            PrivateQemuNbd("image", [str(base)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(used)
    assert not list((tmp_path / "temporary").iterdir())


# Images that are damaged

KINDS = {
    "qcow2": (),
    "qcow2 compressed": ("-c",),
    "vmdk": (),
    "vmdk streamOptimized": ("-o", "subformat=streamOptimized"),
    "vdi": (),
    "vhdx": (),
    "vpc": (),
    "parallels": (),
}
CUT = r"image is damaged: its data goes on behind its end at byte \d+: copy it anew|truncated"


@pytest.mark.parametrize("kind", KINDS)
def test_image_that_was_cut_is_refused(tmp_path: Path, kind: str) -> None:
    disk, image, name = tmp_path / "disk", tmp_path / "image", kind.split(maxsplit=1)[0]
    disk.write_bytes(os.urandom(8 * MiB))
    qemu_img("convert", "-f", "raw", "-O", name, *KINDS[kind], disk, image)
    QemuSource(image, name).close()
    os.truncate(image, 6 * MiB)
    with pytest.raises(LocalError, match=CUT):
        QemuSource(image, name)


@pytest.mark.parametrize("kind", ["monolithicFlat", "twoGbMaxExtentFlat", "twoGbMaxExtentSparse"])
def test_extent_of_a_vmdk_that_was_cut_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "disk").write_bytes(os.urandom(8 * MiB))
    image = tmp_path / "image.vmdk"
    qemu_img("convert", "-f", "raw", "-O", "vmdk", "-o", f"subformat={kind}", tmp_path / "disk", image)
    (extent,) = tmp_path.glob("image-*.vmdk")
    QemuSource(image, "vmdk").close()
    os.truncate(extent, 6 * MiB)
    with pytest.raises(LocalError, match=r"is damaged: its data goes on behind its end at byte \d+: copy it anew"):
        QemuSource(image, "vmdk")


def test_member_that_was_cut_before_it_was_packed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(pattern(8 * MiB))
    qemu_img("convert", "-f", "raw", "-O", "vmdk", tmp_path / "disk", tmp_path / "image")
    (tmp_path / "a.ova").write_bytes(bytes(512) + (tmp_path / "image").read_bytes())
    with pytest.raises(LocalError, match=r"a\.ova is damaged: its data goes on behind its end at byte 6291456"):
        QemuSource(tmp_path / "a.ova", "vmdk", Member("image", 512, 6 * MiB))


def test_vdi_without_a_whole_header_is_refused(tmp_path: Path) -> None:
    qemu_img("create", "-f", "vdi", tmp_path / "image", "1M")
    link = tmp_path / "image"
    os.truncate(link, 300)
    with pytest.raises(LocalError, match="is damaged: its data goes on behind its end at byte 300"):
        refuse_cut([link], "image", "vdi", None)


def test_missing_qemu_img_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu_img("create", "-f", "qcow2", tmp_path / "image", "1M")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LocalError, match="can't run qemu-img"):
        refuse_cut([tmp_path / "image"], "image", "qcow2", None)
