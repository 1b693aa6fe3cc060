# SPDX-License-Identifier: Apache-2.0
"""--dry-run tells what a transfer would do and what it would be refused for, and changes nothing."""

import gzip
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    LocalError,
    NoRoom,
    Refused,
    Settings,
    StorageFailed,
    Usage,
    preview_download,
    preview_upload,
    upload,
)
from imageio_daemon.client.transfer import preview
from tests.client.conftest import SIZE
from tests.client.programs import run
from tests.client.transfer.test_continued_download import without
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB
from tests.support.nbdservers import nbdkit, qemu_nbd


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    return new_image(b"\xff" * (SIZE + 1), sparse=True)


def told(daemon: Daemon, *arguments: str | Path, status: int = 0) -> dict[str, Any]:
    """Return what the command tells as JSON."""
    result = run(arguments[0], "--dry-run", "--json", "--cafile", daemon.cafile, *arguments[1:])
    assert result.status == status, result
    return next(each for each in map(json.loads, result.out.splitlines()) if each["event"] == "preview")


def test_upload_is_told(daemon: Daemon, source: Path, target: Image) -> None:
    seen = told(daemon, "upload", source, daemon.url(target.ticket))
    assert (seen["source"], seen["format"], seen["rights"]) == (str(source), "raw", ["read", "write"])
    assert (seen["size"], seen["target_size"]) == (SIZE + 1, SIZE + 1)
    assert seen["data"] + seen["zero"] == SIZE + 1
    assert 6 * MiB <= seen["data"] <= 7 * MiB
    assert (seen["refused"], seen["from_before"]) == ([], None)


def test_people_read_it(daemon: Daemon, source: Path, target: Image) -> None:
    result = run("upload", "--dry-run", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert f"size: {SIZE + 1} (24.0 MiB)" in lines
    assert "rights: read, write" in lines


def test_nothing_is_changed(daemon: Daemon, source: Path, target: Image, states: Path, tmp_path: Path) -> None:
    before, files = target.content(), sorted(tmp_path.rglob("*"))
    told(daemon, "upload", source, daemon.url(target.ticket))
    told(daemon, "download", daemon.url(target.ticket), tmp_path / "copy.qcow2")
    assert target.content() == before
    assert sorted(tmp_path.rglob("*")) == files
    assert not states.exists()
    assert daemon.status(target.ticket)["written"] == 0


@pytest.mark.parametrize(
    ("name", "options", "format_name"),
    [
        ("disk.qcow2", [], "qcow2"),
        ("disk.raw.gz", [], "raw, gz"),
        ("disk.ova", [], "as the disk in it is named, in an archive"),
        ("disk.ova", ["--member", "disk.qcow2"], "qcow2, in an archive"),
    ],
)
def test_format_is_told(
    daemon: Daemon, source: Path, new_image: MakeImage, tmp_path: Path, name: str, options: list[str], format_name: str
) -> None:
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", source, tmp_path / "disk.qcow2"], check=True)
    (tmp_path / "disk.raw").write_bytes(source.read_bytes())
    subprocess.run(["gzip", "-k", tmp_path / "disk.raw"], check=True)
    with tarfile.open(tmp_path / "disk.ova", "w") as archive:
        archive.add(tmp_path / "disk.qcow2", "disk.qcow2")
    url = daemon.url(new_image(size=SIZE + MiB).ticket)
    assert told(daemon, "upload", *options, tmp_path / name, url)["format"] == format_name


def test_what_an_earlier_upload_has_left_is_told(
    daemon: Daemon, source: Path, target: Image, states: Path, tls: Settings
) -> None:
    upload(source, daemon.url(target.ticket), settings=tls)
    seen = told(daemon, "upload", source, daemon.url(target.ticket))
    assert seen["from_before"] in (None, SIZE + 1)  # None: the daemon keeps no record
    assert told(daemon, "upload", "--restart", source, daemon.url(target.ticket))["from_before"] is None


def test_record_of_the_server_is_told(own: Daemon, source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"\xff" * (SIZE + 1))
    url = own.url(own.add_ticket(tmp_path / "target", SIZE + 1))
    upload(source, url, settings=Settings(cafile=str(own.cafile)))
    assert told(own, "upload", source, url)["from_before"] == SIZE + 1


# What would be refused


def test_target_that_is_too_small_would_be_refused(
    daemon: Daemon, source: Path, new_image: MakeImage, tls: Settings
) -> None:
    url = daemon.url(new_image(size=MiB).ticket)
    (error,) = preview_upload(source, url, settings=tls).refused
    assert isinstance(error, Refused)
    run("upload", "--dry-run", "--cafile", daemon.cafile, source, url)
    seen = told(daemon, "upload", source, url, status=3)
    assert "the target may have 1048576: make the target larger" in seen["refused"][0]


def test_server_that_cannot_flush_would_be_refused(daemon: Daemon, source: Path, tls: Settings, tmp_path: Path) -> None:
    size = source.stat().st_size
    with nbdkit("eval", f"get_size=echo {size}", "pread=head -c $3 /dev/zero", "pwrite=cat >/dev/null") as server:
        ticket = daemon.add_ticket(tmp_path, size, url=server.url)
        (error,) = preview_upload(source, daemon.url(ticket), settings=tls).refused
        daemon.remove(ticket)
    assert (type(error), error.code) == (StorageFailed, "cannot_flush")


def test_all_refusals_are_told(daemon: Daemon, source: Path, new_image: MakeImage) -> None:
    url = daemon.url(new_image(size=MiB, ops=["read"]).ticket)
    result = run("upload", "--dry-run", "--cafile", daemon.cafile, source, url)
    assert result.status == 3
    assert result.err == "imageio-client: the ticket does not allow writing: ask for one that does\n"
    assert "rights: read\n" in result.out
    assert "refused, too: the image has" in result.out


def test_storage_without_room_would_refuse(
    daemon: Daemon, source: Path, tls: Settings, target: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Iterator[NoRoom]:
        yield NoRoom("no room")

    monkeypatch.setattr("imageio_daemon.client.transfer.upload.no_room", full)
    assert [str(error) for error in preview_upload(source, daemon.url(target.ticket), settings=tls).refused] == [
        "no room"
    ]
    assert preview_upload(source, daemon.url(target.ticket), settings=tls, room_check=False).refused == ()


def test_empty_image_is_refused(daemon: Daemon, target: Image, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    result = run("upload", "--dry-run", "--cafile", daemon.cafile, tmp_path / "empty", daemon.url(target.ticket))
    result.failed_with("is empty", 5)


def test_ticket_that_is_unknown_is_refused_at_once(daemon: Daemon, source: Path) -> None:
    result = run("upload", "--dry-run", "--cafile", daemon.cafile, source, daemon.url("no-such-ticket"))
    result.failed_with("the ticket does not allow this", 3)


@pytest.mark.parametrize("command", ["upload", "download"])
def test_order_of_arguments_is_told(daemon: Daemon, source: Path, command: str) -> None:
    first, second = (daemon.url("x"), source) if command == "upload" else (source, daemon.url("x"))
    run(command, "--dry-run", first, second).failed_with("comes first, then the", 2)


@pytest.mark.parametrize(
    ("missing", "size", "message", "status"),
    [("checksum_range", SIZE + 1, "nobody knows what differs", 3), ("", MiB, "can't verify: the target has", 6)],
)
def test_update_would_be_refused(
    daemon: Daemon,
    source: Path,
    new_image: MakeImage,
    tls: Settings,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    size: int,
    message: str,
    status: int,
) -> None:
    without(monkeypatch, missing)
    url = daemon.url(new_image(b"\xff" * size).ticket)
    error = preview_upload(source, url, settings=tls, update=True).refused[0]
    assert (message in str(error), error.status) == (True, status)
    with pytest.raises(type(error), match=message):
        upload(source, url, settings=tls, update=True)


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_verify_would_be_refused_by_a_server_without_checksums(
    daemon: Daemon, source: Path, target: Image, tls: Settings, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    without(monkeypatch, "checksum", "checksum_blocks", "checksum_range", "finalize")
    url = daemon.url(target.ticket)
    if direction == "upload":
        refused = preview_upload(source, url, settings=tls, verify=True).refused
    else:
        refused = preview_download(url, source.with_name("copy"), settings=tls, verify=True).refused
    assert isinstance(refused[0], ChecksumMismatch)
    assert "computes no checksums" in str(refused[0])


def test_verify_of_a_part_would_be_refused_by_a_server_without_checksums_of_parts(
    daemon: Daemon, source: Path, new_image: MakeImage, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "checksum_range")
    target = new_image(size=SIZE + MiB)
    (error,) = preview_upload(source, daemon.url(target.ticket), settings=tls, verify=True).refused
    assert "make it as large as the source" in str(error)
    with pytest.raises(ChecksumMismatch, match="make it as large as the source"):
        upload(source, daemon.url(target.ticket), settings=tls, verify=True)
    assert target.content() == bytes(SIZE + MiB)


def test_image_that_is_finalized_is_only_compared(daemon: Daemon, source: Path, target: Image, tls: Settings) -> None:
    url = daemon.url(target.ticket)
    assert upload(source, url, settings=tls, verify=True).verified == "read"
    assert preview_upload(source, url, settings=tls, verify=True).refused == ()
    (error,) = preview_upload(source, url, settings=tls).refused
    assert "the image is finalized" in str(error)


def test_update_from_a_stream_would_be_refused(daemon: Daemon, source: Path, target: Image, tmp_path: Path) -> None:
    (tmp_path / "disk.raw.gz").write_bytes(gzip.compress(source.read_bytes(), 1))
    result = run("upload", "--dry-run", "--update", tmp_path / "disk.raw.gz", daemon.url(target.ticket))
    result.failed_with("reads the image twice", 2)


# Downloads


def test_download_is_told(daemon: Daemon, source: Path, new_image: MakeImage, tmp_path: Path) -> None:
    url = daemon.url(new_image(path=source, ops=["read"]).ticket)
    (tmp_path / "there").touch()
    seen = told(daemon, "download", url, tmp_path / "copy.raw.zst")
    assert (seen["format"], seen["replaces"], seen["rights"], seen["size"]) == ("raw, zstd", False, ["read"], SIZE + 1)
    assert told(daemon, "download", url, tmp_path / "there")["replaces"] is True
    assert (tmp_path / "there").read_bytes() == b""


def test_download_without_a_place_would_be_refused(daemon: Daemon, target: Image, tls: Settings) -> None:
    (error,) = preview_download(daemon.url(target.ticket), "/no/such/copy", settings=tls).refused
    assert isinstance(error, LocalError)


def test_download_without_room_would_be_refused(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "_free", lambda _: MiB)
    (error,) = preview_download(daemon.url(target.ticket), tmp_path / "copy", settings=tls).refused
    assert str(error) == "the image has 24.0 MiB of data, and there is room for 1.0 MiB"


def test_room_for_what_is_compressed_is_not_known(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "_free", lambda _: MiB)
    assert preview_download(daemon.url(target.ticket), tmp_path / "copy.zst", settings=tls).refused == ()


def test_file_that_may_not_be_replaced_would_be_refused(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").touch()
    monkeypatch.setattr(os, "access", lambda name, mode: name != tmp_path / "copy")
    (error,) = preview_download(daemon.url(target.ticket), tmp_path / "copy", settings=tls).refused
    assert str(error) == f"can't write {tmp_path}/copy: Permission denied"


def test_names_are_shown_without_control_characters(daemon: Daemon, target: Image, tmp_path: Path) -> None:
    seen = told(daemon, "download", daemon.url(target.ticket), tmp_path / "a\x1b\udcff")
    assert seen["target"] == rf"{tmp_path}/a\x1b\xff"


def test_device_that_is_too_small_would_be_refused(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands for the device: both are written in place."""
    (tmp_path / "device").write_bytes(bytes(MiB))
    monkeypatch.setattr("imageio_daemon.client.local.choosing.is_existing_device", lambda _: True)
    (error,) = preview_download(daemon.url(target.ticket), tmp_path / "device", settings=tls).refused
    assert "it does not fit" in str(error)
    assert (tmp_path / "device").read_bytes() == bytes(MiB)


def test_update_of_a_missing_file_would_be_refused(daemon: Daemon, target: Image, tmp_path: Path) -> None:
    result = run("download", "--dry-run", "--update", daemon.url(target.ticket), tmp_path / "missing")
    result.failed_with("there is no .*missing to update", 5)


def test_update_needs_no_room(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").write_bytes(bytes(MiB))
    monkeypatch.setattr(preview, "_free", lambda _: MiB)
    seen = preview_download(daemon.url(target.ticket), tmp_path / "copy", settings=tls, update=True)
    assert (seen.refused, seen.room, seen.replaces) == ((), None, None)
    assert (tmp_path / "copy").read_bytes() == bytes(MiB)


def test_update_would_be_refused_where_nobody_knows_what_differs(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").touch()
    without(monkeypatch, "checksum_range")
    (error,) = preview_download(daemon.url(target.ticket), tmp_path / "copy", settings=tls, update=True).refused
    assert "nobody knows what differs" in str(error)


@pytest.mark.parametrize(("size", "is_refused"), [(MiB, True), (SIZE + 512, False)])
def test_update_of_a_qcow2_would_be_refused_for_its_size(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path, size: int, is_refused: bool
) -> None:
    copy = tmp_path / "copy.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", copy, str(size)], check=True)
    subprocess.run(["qemu-img", "bitmap", "--add", copy, "since"], check=True)
    before = copy.read_bytes()
    refused = preview_download(daemon.url(target.ticket), copy, settings=tls, update=True).refused
    assert ["qemu-img resize" in str(error) for error in refused] == [True] * is_refused
    assert copy.read_bytes() == before


def test_update_of_a_qcow2_that_is_marked_as_corrupt_would_be_refused(
    daemon: Daemon, target: Image, tls: Settings, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", copy, str(SIZE + 512)], check=True)
    with copy.open("r+b") as file:
        file.seek(79)
        file.write(b"\2")
    (error,) = preview_download(daemon.url(target.ticket), copy, settings=tls, update=True).refused
    assert "marked as corrupt (repair it: qemu-img check -r all)" in str(error)


def test_update_of_an_image_in_use_would_be_refused(daemon: Daemon, target: Image, tmp_path: Path) -> None:
    copy = tmp_path / "copy.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", copy, str(SIZE + 512)], check=True)
    with qemu_nbd(copy, "qcow2"):
        result = run("download", "--dry-run", "--update", "--cafile", daemon.cafile, daemon.url(target.ticket), copy)
        result.failed_with(r"is in use by qemu-nbd \(pid \d+\): end that first", 5)


def test_update_by_a_bitmap_is_previewed(daemon: Daemon, target: Image, tls: Settings, tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, str(SIZE + 512)], check=True)
    subprocess.run(["qemu-img", "bitmap", "--add", "-f", "qcow2", disk, "since"], check=True)
    by: dict[str, Any] = {"settings": tls, "update": True, "base": "0" * 64, "bitmap": "since"}
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(MiB))
    refused = preview_upload(disk, daemon.url(target.ticket), **by).refused
    assert [type(error) for error in refused] == [ChecksumMismatch]  # of another size
    with pytest.raises(Usage, match="only a qcow2 image in a file"):
        preview_upload(raw, daemon.url(target.ticket), **by)
