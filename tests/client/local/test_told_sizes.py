# SPDX-License-Identifier: Apache-2.0
"""A size that somebody tells is a claim: what comes decides, and more or less than told is an error before the end."""

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import LocalError, Progress, ServerFailed, Settings, Usage, checksum, download, upload
from imageio_daemon.client.local.archive import members
from imageio_daemon.client.local.compressed import zstd
from imageio_daemon.client.local.sizes import told_size
from imageio_daemon.client.transfer.block_hashing import hash_unit
from tests.client.local.test_sources import piped
from tests.client.programs import run
from tests.examples.programs import ScriptedServer, answer, features
from tests.support.daemon import Daemon
from tests.support.images import Image, KiB, MakeImage, MiB, pattern
from tests.support.realstorage import loop_device, missing

DATA = pattern(MiB + 3)
BEFORE = b"\xff" * (2 * MiB)
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"
EMPTY = zstd.compress(b"")
PACK: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "gz": gzip.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "bz2": bz2.compress,
    "zstd": zstd.compress,
}
needs_devices = pytest.mark.skipif(bool(missing("ext4")), reason=missing("ext4"))
needs_pzstd = pytest.mark.skipif(not shutil.which("pzstd"), reason="pzstd is not installed (Debian: zstd)")


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    """A larger image that is full of other data."""
    return new_image(BEFORE)


@pytest.fixture
def url(daemon: Daemon, target: Image) -> str:
    return daemon.url(target.ticket)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# A pipe, whose size an argument tells


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1])
def test_pipe_that_is_longer_is_an_error(url: str, tls: Settings, tmp_path: Path, kind: str | None, size: int) -> None:
    with (
        piped(written(tmp_path / "packed", PACK[kind](DATA))) as pipe,
        pytest.raises(LocalError, match=f"the input is longer than the {size} bytes that --size says"),
    ):
        upload(pipe, url, settings=tls, size=size, decompress=kind, format="raw")


@pytest.mark.parametrize("kind", PACK)
def test_pipe_that_is_shorter_is_an_error(url: str, tls: Settings, tmp_path: Path, kind: str | None) -> None:
    with (
        piped(written(tmp_path / "packed", PACK[kind](DATA))) as pipe,
        pytest.raises(LocalError, match=f"ended at byte {len(DATA)}, and not at {len(DATA) + 1} as --size says"),
    ):
        upload(pipe, url, settings=tls, size=len(DATA) + 1, decompress=kind, format="raw")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_command_tells_that_more_came_than_nothing(url: str, target: Image, tmp_path: Path, arguments: Any) -> None:
    source = written(tmp_path / "source", DATA)
    result = run("upload", *arguments, "--insecure", "--size", "0", "-", url, stdin=source)
    result.failed_with("longer than the 0 bytes that --size says", 5)
    assert [json.loads(line)["event"] for line in result.out.splitlines()] == (["error"] if arguments else [])
    assert target.content() == BEFORE


@pytest.mark.parametrize("size", [-1, 2**63])
def test_size_that_no_image_has_is_refused(url: str, size: int) -> None:
    with pytest.raises(LocalError, match=f"the input can't have {size} bytes, as --size says"):
        upload(io.BytesIO(DATA), url, size=size)


# A pipe, whose size its first frame tells


@pytest.mark.parametrize("before", [SKIPPABLE, EMPTY, SKIPPABLE + EMPTY + SKIPPABLE])
def test_first_frame_without_data_tells_nothing(
    url: str, tls: Settings, target: Image, tmp_path: Path, before: bytes
) -> None:
    packed = written(tmp_path / "packed", before + zstd.compress(DATA))
    with piped(packed) as pipe, pytest.raises(Usage, match="a stream needs --size"):
        upload(pipe, url, settings=tls, decompress="zstd")
    assert target.content() == BEFORE
    with piped(packed) as pipe:
        upload(pipe, url, settings=tls, decompress="zstd", size=len(DATA))
    assert target.content() == DATA + BEFORE[len(DATA) :]


@needs_pzstd
def test_what_pzstd_writes_is_never_done_without_its_data(url: str, target: Image, tmp_path: Path) -> None:
    subprocess.check_call(["pzstd", "-q", "-o", tmp_path / "packed", written(tmp_path / "source", DATA)])
    arguments = ("upload", "--quiet", "--insecure", "--decompress", "zstd")
    run(*arguments, "-", url, stdin=tmp_path / "packed").failed_with("a stream needs --size", 2)
    assert target.content() == BEFORE
    assert run(*arguments, "--size", str(len(DATA)), "-", url, stdin=tmp_path / "packed").status == 0
    assert target.content() == DATA + BEFORE[len(DATA) :]


def test_frames_behind_the_first_are_an_error(url: str, tls: Settings, tmp_path: Path) -> None:
    packed = written(tmp_path / "packed", zstd.compress(DATA[:KiB]) + zstd.compress(DATA[KiB:]))
    message = "longer than the 1024 bytes that its header says: say --size for all that comes"
    with piped(packed) as pipe, pytest.raises(LocalError, match=message):
        upload(pipe, url, settings=tls, decompress="zstd", format="raw")


def test_frame_that_tells_more_than_any_image_has_is_refused(url: str) -> None:
    head = bytes.fromhex("28b52ffd") + b"\xe0" + (2**64 - 3).to_bytes(8, "little")
    with pytest.raises(LocalError, match=f"can't have {2**64 - 3} bytes, as its header says"):
        upload(io.BytesIO(head + bytes(KiB)), url, decompress="zstd", format="raw")


def test_frame_that_lies_is_an_error(url: str, tls: Settings) -> None:
    frame = bytearray(zstd.compress(DATA[:KiB]))
    assert int.from_bytes(frame[5:7], "little") == KiB - 256  # RFC 8878, 3.1.1.1.4
    frame[6] += 1
    with pytest.raises(LocalError, match="can't decompress the input as zstd"):
        upload(io.BytesIO(frame), url, settings=tls, decompress="zstd", format="raw")


# A file, whose size its heads tell


@pytest.mark.parametrize("before", [SKIPPABLE, EMPTY, SKIPPABLE + EMPTY + SKIPPABLE])
def test_all_frames_of_a_file_count(url: str, tls: Settings, target: Image, tmp_path: Path, before: bytes) -> None:
    path = written(tmp_path / "disk.zst", before + zstd.compress(DATA[:KiB]) + EMPTY + zstd.compress(DATA[KiB:]))
    upload(path, url, settings=tls)
    assert target.content() == DATA + BEFORE[len(DATA) :]


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", "zstd"])
@pytest.mark.parametrize("size", [0, len(DATA) - 1, len(DATA) + 1])
def test_argument_about_a_file_is_a_claim(url: str, tls: Settings, tmp_path: Path, kind: str, size: int) -> None:
    path = written(tmp_path / "packed", PACK[kind](DATA))
    with pytest.raises(LocalError, match=r"longer than|ended at byte"):
        upload(path, url, settings=tls, decompress=kind, size=size, format="raw")


@needs_devices
@pytest.mark.parametrize("kind", ["xz", "zstd", "gz"])
def test_compressed_content_of_a_device_has_its_size(
    url: str, tls: Settings, target: Image, tmp_path: Path, kind: str
) -> None:
    packed = written(tmp_path / "packed", PACK[kind](DATA) + bytes(8 * KiB))
    os.truncate(packed, packed.stat().st_size // 512 * 512)
    with loop_device(packed) as device:
        with device.open("rb") as file:
            assert told_size(file.fileno(), kind) in (len(DATA), None)
        upload(device, url, settings=tls, decompress=kind)
    assert target.content() == DATA + BEFORE[len(DATA) :]


# A file or device that changes while it is read


def grows(path: Path) -> Callable[[Progress], None]:
    return lambda _: os.truncate(path, 2 * len(DATA))


@pytest.mark.parametrize("shared", [False, True])
def test_file_that_grows_is_an_error(url: str, tls: Settings, tmp_path: Path, shared: bool) -> None:
    path = written(tmp_path / "source", DATA)
    with pytest.raises(LocalError, match=f"became longer while it was read: it had {len(DATA)} bytes: start anew"):
        upload(path, url, settings=tls, shared=shared, progress=grows(path))


@pytest.mark.parametrize("shared", [False, True])
def test_file_whose_hole_at_the_end_goes_is_an_error(url: str, tls: Settings, tmp_path: Path, shared: bool) -> None:
    path = written(tmp_path / "source", DATA)
    os.truncate(path, 2 * MiB)
    with pytest.raises(LocalError, match="became shorter while it was read: it ends at byte 1572865"):
        upload(path, url, settings=tls, shared=shared, progress=lambda _: os.truncate(path, MiB + 512 * KiB + 1))


@needs_devices
def test_device_that_grows_is_an_error(url: str, tls: Settings, tmp_path: Path) -> None:
    backing = written(tmp_path / "backing", DATA[:MiB])

    def grow(_: Progress) -> None:
        os.truncate(backing, 2 * MiB)
        subprocess.check_call(["losetup", "--set-capacity", device])

    with loop_device(backing) as device, pytest.raises(LocalError, match=f"became longer .*: it had {MiB} bytes"):
        upload(device, url, settings=tls, progress=grow)


@pytest.mark.parametrize("compressed", [False, True])
def test_checksum_of_a_file_that_changes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    path = written(tmp_path / ("disk.zst" if compressed else "disk"), (PACK["zstd"] if compressed else bytes)(DATA))

    def change(*arguments: Any) -> None:
        hash_unit(*arguments)
        os.truncate(path, 2 * len(DATA))

    monkeypatch.setattr("imageio_daemon.client.transfer.block_hashing.hash_unit", change)
    with pytest.raises(LocalError, match=r"became longer|was changed while it was read"):
        checksum(path)


# A member of an archive


def archived(size: int) -> bytes:
    """Return an archive whose header tells a size of DATA."""
    member = tarfile.TarInfo("disk")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT) + DATA + bytes(-len(DATA) % 512)


@pytest.mark.parametrize("kind", ["gz", "zstd", None])
def test_member_that_is_shorter_is_an_error(url: str, tls: Settings, tmp_path: Path, kind: str | None) -> None:
    packed = written(tmp_path / "packed", PACK[kind](archived(2 * MiB)))
    with (
        piped(packed) as pipe,
        pytest.raises(LocalError, match=rf"ended at byte \d+, and not at {2 * MiB} as the arch"),
    ):
        upload(pipe, url, settings=tls, decompress=kind, member="disk", format="raw")
    with pytest.raises(LocalError, match=r"ended at byte|unexpected end of data"):
        upload(packed, url, settings=tls, decompress=kind, member="disk", format="raw")


def test_member_of_less_than_no_bytes_is_an_error() -> None:
    header = bytearray(archived(0)[:512])
    header[124:136] = b"\xff" * 12  # -1 in base 256
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    with pytest.raises(LocalError, match="can't read x as a tar archive"):
        list(members(io.BytesIO(header + bytes(KiB)), "x"))


@pytest.mark.parametrize("behind", [b"", pattern(MiB, 1)])
def test_damage_that_only_the_end_of_an_archive_tells_is_an_error(
    url: str, tls: Settings, tmp_path: Path, behind: bytes
) -> None:
    packed = bytearray(gzip.compress(archived(len(DATA)) + behind))
    packed[-6] ^= 1  # RFC 1952 2.3.1: CRC-32 and length of what was compressed
    with pytest.raises(LocalError, match=r"can't decompress .* as gz: .*incorrect data check"):
        upload(
            written(tmp_path / "packed", bytes(packed)), url, settings=tls, decompress="gz", member="disk", format="raw"
        )


# A source of no bytes


def test_empty_sources_are_refused(url: str, tls: Settings, target: Image, tmp_path: Path) -> None:
    empty = written(tmp_path / "empty", b"")
    archive = written(tmp_path / "archive.tar", archived(0)[:512] + bytes(KiB))
    sources: list[tuple[Any, str, dict[str, Any]]] = [
        (empty, f"{empty} is empty: it has 0 bytes", {}),
        (io.BytesIO(), "the input is empty: it has 0 bytes", {"size": 0}),
        (written(tmp_path / "disk.gz", gzip.compress(b"")), "disk.gz is empty", {}),
        (written(tmp_path / "disk.xz", lzma.compress(b"")), "disk.xz is empty", {}),
        (written(tmp_path / "disk.zst", EMPTY), "disk.zst is empty", {}),
        (written(tmp_path / "nothing.zst", b""), "ends in the middle of its zstd data", {}),
        (archive, "archive.tar is empty", {}),
    ]
    for source, message, how in sources:
        with pytest.raises(LocalError, match=message):
            upload(source, url, settings=tls, **how)
    run("upload", "--insecure", empty, url).failed_with("is empty", 5)
    assert target.content() == BEFORE


def test_empty_disk_behind_another_is_told_by_its_name(url: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "disks.tar", "w") as archive:
        archive.add(written(tmp_path / "disk", DATA), "one")
        archive.addfile(tarfile.TarInfo("two"))
    result = run("upload", "--quiet", "--insecure", "--all", tmp_path / "disks.tar", url, url)
    result.failed_with(r"two in .*/disks\.tar is empty: it has 0 bytes\. Name the image that has the disk", 5)
    assert "on stable storage" not in result.err  # nothing of this one is


# An image on a server


def test_image_that_grows_on_the_server_is_no_copy(tmp_path: Path) -> None:
    size = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/4")
    grown = answer("206 Partial Content", "xxxx", "Content-Range: bytes 0-3/8")
    with (
        ScriptedServer(features(), size, grown) as server,
        pytest.raises(ServerFailed, match="had 4 bytes, and has another size now: start anew"),
    ):
        download(server.url, tmp_path / "copy", settings=Settings(connections=1))
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize("length", [3, 5])
def test_answer_of_another_length_is_no_copy(tmp_path: Path, length: int) -> None:
    size = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/4")
    other = answer("206 Partial Content", "x" * length, "Content-Range: bytes 0-3/4")
    with ScriptedServer(features(), size, other) as server, pytest.raises(ServerFailed, match="another range"):
        download(server.url, tmp_path / "copy", settings=Settings(connections=1))
    assert not list(tmp_path.glob("copy*"))
