# SPDX-License-Identifier: Apache-2.0
"""Sources that are decompressed on the way."""

import bz2
import errno
import gzip
import io
import itertools
import lzma
import os
import resource
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Progress, Settings, Usage, checksum, disks, info, upload
from imageio_daemon.client.local import compressed
from imageio_daemon.client.local.compressed import Decompressed, zstd
from imageio_daemon.client.local.sizes import told_size
from imageio_daemon.client.transfer import progress
from tests.client.conftest import SIZE
from tests.client.programs import command, run
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": zstd.compress,
    "bz2": lambda data: bz2.compress(data, 1),
}
KINDS = {"gz": "gz", "xz": "xz", "zst": "zstd", "bz2": "bz2"}
TELLS = {"xz", "zst"}


def packed(source: Path, suffix: str) -> Path:
    path = source.with_name(f"{source.name}.{suffix}")
    path.write_bytes(PACK[suffix](source.read_bytes()))
    return path


def decompressed(data: bytes, kind: str, step: int = 100 * KiB) -> bytes:
    reader = Decompressed(io.BytesIO(data), kind, "image")
    return b"".join(iter(lambda: reader.read(step), b""))


def size_of(tmp_path: Path, data: bytes, kind: str) -> int | None:
    path = tmp_path / "packed"
    path.write_bytes(data)
    with path.open("rb") as file:
        return told_size(file.fileno(), kind)


@pytest.mark.parametrize(
    ("suffix", "settings"), [("gz", "unix"), ("xz", "tls"), ("zst", "tls"), ("bz2", "unix")], indirect=["settings"]
)
def test_suffix_says_what_is_compressed(
    daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage, states: Path, suffix: str
) -> None:
    target = new_image(b"\xff" * (SIZE + 1), sparse=True)
    done = upload(packed(source, suffix), daemon.url(target.ticket), settings=settings, verify=True, checkpoint=0)
    assert target.content() == source.read_bytes()
    assert done.progress.data < 6 * MiB  # zeros are found
    assert not states.exists()


@pytest.mark.parametrize("suffix", PACK)
def test_pipe_is_decompressed(daemon: Daemon, source: Path, new_image: MakeImage, suffix: str) -> None:
    target = new_image(b"\xff" * (SIZE + 1))
    size = () if suffix == "zst" else ("--size", str(SIZE + 1))
    arguments = ("upload", "-q", "--cafile", daemon.cafile, "--decompress", KINDS[suffix], *size, "-")
    done = subprocess.run(
        command(*arguments, daemon.url(target.ticket)),
        input=packed(source, suffix).read_bytes(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert target.content() == source.read_bytes()


def test_pipe_whose_size_nobody_tells_needs_it(daemon: Daemon, source: Path) -> None:
    result = run("upload", "--decompress", "gz", "-", daemon.url("ticket"), stdin=packed(source, "gz"))
    result.failed_with("a stream needs --size", 2)


def test_other_name_is_decompressed_if_told(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image(size=SIZE + 1)
    unnamed = packed(source, "gz").rename(source.with_name("unnamed"))
    upload(unnamed, daemon.url(target.ticket), settings=tls, decompress="gz")
    assert target.content() == source.read_bytes()


def test_format_raw_takes_compressed_bytes_as_they_are(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage
) -> None:
    path = packed(source, "gz")
    target = new_image(size=path.stat().st_size)
    upload(path, daemon.url(target.ticket), settings=tls, format="raw")
    assert target.content() == path.read_bytes()


def test_info_and_checksum_are_of_what_is_in_it(source: Path) -> None:
    path = packed(source, "zst")
    assert info(path).size == SIZE + 1
    assert checksum(path) == checksum(source)


def test_checksum_has_several_blocks_of_what_is_read_at_a_time(source: Path) -> None:
    path = packed(source, "zst")
    assert checksum(path, block_size=MiB) == checksum(source, block_size=MiB)


@pytest.mark.parametrize("kind", KINDS.values())
def test_several_streams_that_follow_each_other_are_one(kind: str, tmp_path: Path) -> None:
    pack = PACK[next(suffix for suffix, name in KINDS.items() if name == kind)]
    data = pack(b"first" * 1000) + pack(b"") + pack(b"second" * 1000)
    assert decompressed(data, kind) == b"first" * 1000 + b"second" * 1000
    assert decompressed(data, kind, 7) == b"first" * 1000 + b"second" * 1000
    assert size_of(tmp_path, data, kind) == (11000 if kind in ("xz", "zstd") else None)


@pytest.mark.parametrize("kind", KINDS.values())
def test_zeros_may_fill_the_space_behind(kind: str) -> None:
    data = PACK[next(suffix for suffix, name in KINDS.items() if name == kind)](b"image" * 1000)
    assert decompressed(data + bytes(512 * KiB), kind) == b"image" * 1000


@pytest.mark.parametrize("suffix", PACK)
def test_size_is_that_of_a_file_of_many_blocks(suffix: str, tmp_path: Path) -> None:
    data = pattern(MiB) + bytes(300 * KiB) + pattern(MiB, 1)
    skipped = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    parts = {"xz": (PACK["xz"](data[:MiB]), bytes(8)), "zst": (skipped, PACK["zst"](data[:MiB]))}
    whole = b"".join([*parts.get(suffix, (PACK[suffix](data[:MiB]),)), PACK[suffix](data[MiB:])])
    assert decompressed(whole, KINDS[suffix]) == data
    assert size_of(tmp_path, whole, KINDS[suffix]) == (len(data) if suffix in TELLS else None)


def test_zstd_without_its_size_tells_none(tmp_path: Path) -> None:
    compressor = zstd.ZstdCompressor()
    data = compressor.compress(b"image") + compressor.flush()
    assert size_of(tmp_path, data, "zstd") is None


@pytest.mark.parametrize("suffix", sorted(TELLS))
def test_broken_file_tells_no_size_or_an_equal_one(suffix: str, tmp_path: Path) -> None:
    whole = PACK[suffix](pattern(2000))
    for length in range(0, len(whole) - 1, 7):
        assert size_of(tmp_path, whole[:length], KINDS[suffix]) in (None, 0)
    for position in itertools.chain(range(40), range(len(whole) - 40, len(whole))):
        changed = bytearray(whole)
        changed[position] ^= 0xFF
        size_of(tmp_path, bytes(changed), KINDS[suffix])  # raises nothing


# What is read before the transfer


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """What is reported: each read."""
    monkeypatch.setattr(progress, "INTERVAL", 0)
    return []


def test_first_reading_is_told_and_counted(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, told: list[Progress]
) -> None:
    path = packed(source, "gz")
    done = upload(path, daemon.url(new_image(size=SIZE + 1).ticket), settings=tls, progress=told.append)
    reading = [one for one in told if one.phase == "reading"]
    assert reading == told[: len(reading)]
    assert {one.to_check for one in reading} == {path.stat().st_size}
    assert 0 < reading[0].checked < reading[-1].checked == path.stat().st_size
    assert 0 < reading[0].elapsed < reading[-1].elapsed < done.progress.elapsed
    assert done.progress.phase == "transferring"


@pytest.mark.parametrize("member", [None, "disk"])
def test_reading_of_an_archive_is_told(
    daemon: Daemon, tls: Settings, tmp_path: Path, new_image: MakeImage, told: list[Progress], member: str | None
) -> None:
    path, content = tmp_path / "disks.tar.gz", pattern(2 * MiB)
    with tarfile.open(path, "w:gz") as archive:
        for name in ("before.ovf", "disk"):
            head = tarfile.TarInfo(name)
            head.size = len(content)
            archive.addfile(head, io.BytesIO(content))
    target = new_image(size=2 * MiB)
    upload(path, daemon.url(target.ticket), settings=tls, member=member, progress=told.append)
    assert target.content() == content
    assert told[0].phase == "reading"
    assert told[-1].phase == "transferring"


def test_reading_of_the_names_of_disks_is_told(tmp_path: Path, told: list[Progress]) -> None:
    with tarfile.open(tmp_path / "disks.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("disk"))
    assert disks(tmp_path / "disks.tgz", progress=told.append) == ["disk"]
    assert told[-1].checked == told[-1].to_check


def test_input_that_does_not_block_is_waited_for(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage
) -> None:
    target = new_image(size=SIZE + 1)
    with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as cat:
        assert isinstance(cat.stdout, io.BufferedReader)
        os.set_blocking(cat.stdout.fileno(), False)
        upload(cat.stdout, daemon.url(target.ticket), settings=tls, size=SIZE + 1)
    assert target.content() == source.read_bytes()


# What can go wrong


@pytest.mark.parametrize("suffix", PACK)
def test_file_that_is_cut_off_is_told(daemon: Daemon, source: Path, suffix: str) -> None:
    path = packed(source, suffix)
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(LocalError, match=f"ends in the middle of its {KINDS[suffix]} data"):
        upload(path, daemon.url("ticket"))


@pytest.mark.parametrize("suffix", PACK)
def test_file_that_is_something_else_is_told(daemon: Daemon, source: Path, suffix: str) -> None:
    path = source.rename(source.with_name(f"disk.{suffix}"))
    with pytest.raises(LocalError, match=rf"can't decompress .*disk\.{suffix} as {KINDS[suffix]}"):
        upload(path, daemon.url("ticket"))


def test_what_follows_and_is_something_else_is_told() -> None:
    with pytest.raises(LocalError, match="can't decompress image as gz"):
        decompressed(gzip.compress(b"image") + b"garbage", "gz")


def test_image_in_another_format_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "disk.gz").write_bytes(gzip.compress(b"QFI\xfb" + bytes(KiB)))
    with pytest.raises(Usage, match=r"disk\.gz looks like qcow2"):
        upload(tmp_path / "disk.gz", daemon.url("ticket"))


def test_image_of_another_format_on_a_pipe_is_spooled(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path
) -> None:
    (tmp_path / "raw").write_bytes(pattern(3 * MiB) + bytes(MiB))
    subprocess.run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", tmp_path / "raw", tmp_path / "image"], check=True
    )
    target = new_image(b"\xff" * 4 * MiB)
    with (tmp_path / "image").open("rb") as image:
        upload(image, daemon.url(target.ticket), settings=tls, format="qcow2", verify=True)
    assert target.content() == (tmp_path / "raw").read_bytes()


@pytest.mark.parametrize("room", [0, MiB])
def test_spool_that_has_no_room_is_told(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Half of what is free may be used, and somebody else may use it meanwhile."""
    status = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "pwrite", fails(errno.ENOSPC)) if room else monkeypatch.setattr(
        "imageio_daemon.client.local.spool.SHARE", status.f_bavail * status.f_frsize
    )
    (tmp_path / "disk.qcow2.gz").write_bytes(gzip.compress(pattern(MiB)))
    with pytest.raises(LocalError, match=r"has to be written to a temporary file, .*: TMPDIR=DIR names another"):
        upload(tmp_path / "disk.qcow2.gz", daemon.url("ticket"))


def fails(code: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("name", "told"), [("pwrite", "can't write a temporary file in"), ("open", "can't make")])
def test_spool_that_fails_is_told(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    real = os.open

    def fail(path: object, flags: int, *more: object, **named: object) -> int:
        if name == "open" and flags & os.O_TMPFILE != os.O_TMPFILE:
            return real(path, flags, *more, **named)  # type: ignore[arg-type]
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "disk.qcow2.gz").write_bytes(gzip.compress(pattern(MiB)))
    monkeypatch.setattr(os, name, fail)
    with pytest.raises(LocalError, match=told):
        upload(tmp_path / "disk.qcow2.gz", daemon.url("ticket"))


def test_spool_for_which_no_directory_has_room_is_told(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk.qcow2.gz").write_bytes(gzip.compress(pattern(MiB)))
    monkeypatch.setattr(tempfile, "tempdir", None)  # look for one
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # nothing can be written
    try:
        with pytest.raises(LocalError, match="can't make a temporary file: No usable temporary directory found"):
            upload(tmp_path / "disk.qcow2.gz", daemon.url("ticket"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("how", [{}, {"format": "qcow2", "decompress": "gz"}])
def test_damaged_image_of_another_format_is_told(daemon: Daemon, tmp_path: Path, how: dict[str, str]) -> None:
    (tmp_path / "disk.qcow2.gz").write_bytes(gzip.compress(b"QFI\xfb" + bytes(KiB)))
    with pytest.raises(LocalError, match=r"can't open .*disk.qcow2.gz: "):
        upload(tmp_path / "disk.qcow2.gz", daemon.url("ticket"), **how)  # type: ignore[arg-type]


def test_more_than_the_format_tells_is_an_error(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage
) -> None:
    target = new_image(size=2 * SIZE)
    with pytest.raises(LocalError, match=f"longer than the {SIZE} bytes that --size says"):
        upload(packed(source, "gz"), daemon.url(target.ticket), settings=tls, size=SIZE)


def test_bomb_is_not_counted_without_end(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MAX_COUNTED", 10 * MiB)
    (tmp_path / "disk.gz").write_bytes(gzip.compress(bytes(16 * MiB)))
    with pytest.raises(LocalError, match=r"decompresses to more than 10485760 bytes: say --size"):
        upload(tmp_path / "disk.gz", daemon.url("ticket"))


def test_memory_of_xz_has_a_limit() -> None:
    large = {"id": lzma.FILTER_LZMA2, "dict_size": 512 * MiB, "preset": 0, "mf": lzma.MF_HC3, "mode": lzma.MODE_FAST}
    head = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=[large])
    with pytest.raises(LocalError, match="Memory usage limit"):
        decompressed(head.compress(b"image") + head.flush(), "xz")


def test_memory_of_zstd_has_a_limit() -> None:
    frame = bytes.fromhex("28b52ffd") + bytes([0, (28 - 10) << 3]) + bytes.fromhex("010000")
    with pytest.raises(LocalError, match=r"can't decompress image as zstd: .*emory"):
        decompressed(frame, "zstd")
