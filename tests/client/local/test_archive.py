# SPDX-License-Identifier: Apache-2.0
"""Disks in archives: OVA files and other tar archives, compressed or not."""

import contextlib
import gzip
import io
import lzma
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, Usage, checksum, disks, info, upload
from imageio_daemon.client.local import archive as archives
from imageio_daemon.client.local.archive import members
from imageio_daemon.client.local.formats import named
from imageio_daemon.client.local.opening import How, open_source
from tests.client.local.test_formats import converted
from tests.client.programs import command, run
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern

COMPRESSED = {"gz": "gz", "xz": "xz", "bz2": "bz2"}


@pytest.fixture
def ova(disk: Path) -> Path:
    """An archive with a description and a disk in the format that OVA files have."""
    stream = converted(disk, "vmdk", "-o", "subformat=streamOptimized")
    (disk.parent / "appliance.ovf").write_text("<Envelope/>")
    path = disk.with_name("appliance.ova")
    with tarfile.open(path, "w") as archive:
        archive.add(disk.parent / "appliance.ovf", "appliance.ovf")
        archive.add(stream, "disk1.vmdk")
        archive.add(disk, "disk2.raw")
    return path


def test_member_of_an_ova(daemon: Daemon, tls: Settings, ova: Path, disk: Path, new_image: MakeImage) -> None:
    target = new_image(size=63 * MiB)
    url = daemon.url(target.ticket)
    upload(ova, url, settings=tls, member="disk1.vmdk", format="vmdk", verify=True)
    assert target.content() == disk.read_bytes()


def test_raw_member(daemon: Daemon, tls: Settings, ova: Path, disk: Path, new_image: MakeImage) -> None:
    target = new_image(size=63 * MiB)
    upload(ova, daemon.url(target.ticket), settings=tls, member="disk2.raw", verify=True)
    assert target.content() == disk.read_bytes()


def test_missing_member_is_told_with_those_there_are(daemon: Daemon, ova: Path) -> None:
    with pytest.raises(LocalError, match=r"has no member disk, but appliance\.ovf, disk1"):
        upload(ova, daemon.url("ticket"), member="disk")


def test_file_that_is_no_archive_is_told(daemon: Daemon, disk: Path) -> None:
    with pytest.raises(LocalError, match=r"can't read .* as a tar archive"):
        upload(disk, daemon.url("ticket"), member="disk")


def test_archive_is_no_disk(daemon: Daemon, ova: Path) -> None:
    unnamed = ova.rename(ova.with_name("unnamed"))
    with pytest.raises(Usage, match="unnamed looks like tar: say --member NAME, or say --format raw"):
        upload(unnamed, daemon.url("ticket"))


def test_member_that_looks_like_another_format_is_refused(daemon: Daemon, ova: Path, disk: Path) -> None:
    with tarfile.open(ova, "w") as archive:
        archive.add(converted(disk, "qcow2"), "disk")
    with pytest.raises(Usage, match="looks like qcow2"):
        upload(ova, daemon.url("ticket"), member="disk")


def packed(path: Path, content: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    """Return an archive with these members."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in content:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


DISK = pattern(2 * MiB) + bytes(MiB) + pattern(KiB, 1)
APPLIANCE = (("a.ovf", b"<Envelope/>"), ("disk.raw", DISK), ("a.mf", b"SHA256"))


@pytest.mark.parametrize("name", ["a.ova", "a.tar"])
def test_the_one_disk_needs_no_name(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path, name: str
) -> None:
    target = new_image(size=len(DISK))
    upload(packed(tmp_path / name, APPLIANCE), daemon.url(target.ticket), settings=tls, verify=True)
    assert target.content() == DISK


@pytest.mark.parametrize("mode", COMPRESSED)
@pytest.mark.parametrize("member", [None, "disk.raw"])
def test_disk_of_a_compressed_archive(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path, mode: str, member: str | None
) -> None:
    path = packed(tmp_path / f"a.tar.{mode}", APPLIANCE, f"w:{mode}")
    target = new_image(b"\xff" * len(DISK))
    upload(path, daemon.url(target.ticket), settings=tls, member=member, verify=True)
    assert target.content() == DISK


def test_short_suffix_says_both(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.tgz", APPLIANCE, "w:gz")
    (tmp_path / "disk.raw").write_bytes(DISK)
    assert (info(path).size, checksum(path)) == (len(DISK), checksum(tmp_path / "disk.raw"))


@pytest.mark.parametrize(("mode", "options"), [("w", ()), ("w:gz", ("--decompress", "gz"))])
def test_member_of_a_pipe_needs_no_size(
    daemon: Daemon, new_image: MakeImage, tmp_path: Path, mode: str, options: tuple[str, ...]
) -> None:
    target = new_image(b"\xff" * len(DISK))
    done = subprocess.run(
        command(
            "upload",
            "-q",
            "--cafile",
            daemon.cafile,
            *options,
            "--member",
            "disk.raw",
            "-",
            daemon.url(target.ticket),
        ),
        input=packed(tmp_path / "a", APPLIANCE, mode).read_bytes(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert target.content() == DISK


def test_all_disks_go_to_a_url_each(daemon: Daemon, ova: Path, disk: Path, new_image: MakeImage) -> None:
    targets = [new_image(size=63 * MiB, sparse=True), new_image(size=63 * MiB, sparse=True)]
    urls = [daemon.url(target.ticket) for target in targets]
    done = run("upload", "--all", "--cafile", daemon.cafile, ova, *urls)
    assert done.status == 0, done
    assert "disk: disk1.vmdk\n" in done.err
    assert [target.content() == disk.read_bytes() for target in targets] == [True, True]
    assert disks(ova) == ["disk1.vmdk", "disk2.raw"]


def test_all_disks_are_those_of_an_archive_of_this_host() -> None:
    result = run("upload", "--all", "https://host/disks.ova?secret", "https://host/images/x")
    result.failed_with("an archive on a web server are not known: say --member NAME", 2)


def test_all_disks_need_as_many_urls(ova: Path) -> None:
    result = run("upload", "--all", ova, "https://host/images/x")
    result.failed_with(r"there are 1 URLs for the 2 disks disk1\.vmdk, disk2\.raw", 2)


def test_one_disk_has_one_url(tmp_path: Path) -> None:
    run("upload", tmp_path, "https://host/images/x", "https://host/images/y").failed_with("an image has one URL", 2)


@pytest.mark.parametrize(
    ("written", "said"), [("./disk", "disk"), ("disk", "./disk"), ("/a//disk", "a/disk"), ("u\u0308", "ü")]
)
@pytest.mark.parametrize("mode", ["", "gz"])
def test_member_is_found_by_other_ways_to_write_its_name(tmp_path: Path, written: str, said: str, mode: str) -> None:
    path = packed(tmp_path / "a", [(written, DISK)], f"w:{mode}")
    with contextlib.closing(open_source(path, How(member=said, decompress=mode or None))) as source:
        assert source.size == len(DISK)


# What can go wrong


def test_member_that_is_there_twice_is_told(daemon: Daemon, tmp_path: Path) -> None:
    path = packed(tmp_path / "a", [("disk", DISK), ("./disk", DISK)])
    with pytest.raises(LocalError, match="a has 2 members disk: extract it with tar first, which takes the last"):
        upload(path, daemon.url("ticket"), member="disk")


@pytest.mark.parametrize("end", [b"", bytes(1024)], ids=["no end", "end"])
def test_member_that_comes_again_in_a_compressed_archive_is_told(tmp_path: Path, end: bytes) -> None:
    """tar takes the last one, and the first one is what comes first."""
    plain = packed(tmp_path / "plain", [("disk", DISK), ("other", b"x"), ("./disk", DISK)]).read_bytes()
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(plain.rstrip(b"\0") + bytes(-len(plain.rstrip(b"\0")) % 512) + end))
    with contextlib.closing(open_source(path, How(member="disk"))) as source:
        source.read(0, memoryview(bytearray(len(DISK) - 1)))
        with pytest.raises(LocalError, match=r"a.tar.gz has several members ./disk: extract it with tar first"):
            source.read(len(DISK) - 1, memoryview(bytearray(1)))


@pytest.mark.parametrize("mode", ["", "gz"])
def test_compressed_member_without_a_suffix_is_told_with_what_to_do(tmp_path: Path, mode: str) -> None:
    path = packed(tmp_path / "a", [("disk", gzip.compress(DISK))], f"w:{mode}")
    wanted = r"disk in .* looks like gzip: put it into a file of its own first, and say --decompress gz, or say --fo"
    with pytest.raises(Usage, match=wanted):
        open_source(path, How(member="disk", decompress=mode or None))


@pytest.mark.parametrize("name", ["a.tar", "a.ova", "a.tar.gz"])
@pytest.mark.parametrize("member", ["disk.raw.gz", "disk.vmdk", "disk.qcow2.xz"])
def test_member_that_is_compressed_or_in_another_format_is_uploaded(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path, name: str, member: str
) -> None:
    raw, image = tmp_path / "raw", tmp_path / "image"
    raw.write_bytes(DISK)
    found = named(member)
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", found.format or "raw", raw, image], check=True)
    packs: dict[str | None, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, None: bytes}
    path = packed(
        tmp_path / name,
        [(member, packs[found.compression](image.read_bytes()))],
        "w:gz" if name.endswith("gz") else "w",
    )
    target = new_image(b"\xff" * len(DISK))
    upload(path, daemon.url(target.ticket), settings=tls, verify=True)
    assert target.content() == DISK


def test_several_disks_need_a_choice(daemon: Daemon, ova: Path) -> None:
    with pytest.raises(LocalError, match=r"not one disk, but disk1\.vmdk, disk2\.raw: say --member NAME, or --all"):
        upload(ova, daemon.url("ticket"))


def test_archive_in_a_pipe_needs_a_member(tmp_path: Path, daemon: Daemon) -> None:
    with pytest.raises(LocalError, match=r"has no member disk, but a\.ovf, disk\.raw, a\.mf"):
        upload(io.BytesIO(packed(tmp_path / "a", APPLIANCE).read_bytes()), daemon.url("ticket"), member="disk")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_member_has_its_own_size(daemon: Daemon, tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / name, APPLIANCE, "w:gz" if name.endswith("gz") else "w")
    with pytest.raises(Usage, match="a size is for streams"):
        upload(path, daemon.url("ticket"), size=1)


def test_image_of_another_format_than_its_name_says_is_told(daemon: Daemon, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.tgz", [("disk.vmdk", DISK)], "w:gz")
    with pytest.raises(LocalError, match=r"can't open disk.vmdk in .*a.tgz: "):
        upload(path, daemon.url("ticket"))


def test_archive_that_is_cut_off_is_told(daemon: Daemon, tmp_path: Path) -> None:
    whole = packed(tmp_path / "whole", APPLIANCE).read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[: 2 * MiB])
    with pytest.raises(LocalError, match="unexpected end of data"):
        upload(tmp_path / "a.tar", daemon.url("ticket"))
    last = packed(tmp_path / "last", [("disk", DISK)]).read_bytes()
    (tmp_path / "a.tar").write_bytes(last[: len(DISK)])
    with pytest.raises(LocalError, match=r"unexpected end of data|ends in the middle of disk"):
        upload(tmp_path / "a.tar", daemon.url("ticket"))


def test_sparse_member_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    with (tmp_path / "disk").open("wb") as file:
        file.truncate(16 * MiB)
        file.write(b"x")
    subprocess.run(["tar", "-C", tmp_path, "-cSf", tmp_path / "a.tar", "disk"], check=True, timeout=60)
    with pytest.raises(LocalError, match=r"disk is stored as a sparse file in .*: extract it with tar first"):
        upload(tmp_path / "a.tar", daemon.url("ticket"))


def header(size: int, kind: bytes = b"0", name: bytes = b"disk") -> bytes:
    """Return the header of a member with a size that tarfile itself would not write."""
    field = (b"\x80" + size.to_bytes(11, "big")) if size >= 0 else (b"\xff" + (256**11 + size).to_bytes(11, "big"))
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"00000000000\0" + b" " * 8)
    block += kind + bytes(100) + b"ustar\00000" + bytes(247)
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "content",
    [
        header(2**80) + bytes(KiB),
        header(2**63) + bytes(KiB),
        header(-1024) + bytes(KiB),
        header(-512, b"x") + header(0),
        header(2**40, b"x") + bytes(KiB),
        header(100 * KiB, b"L") + bytes(200 * KiB),
        header(512, b"L") + bytes(512),
        header(0, b"L") * 5000,
        (header(512, b"x") + b"30 GNU.sparse.major=1\n".ljust(512, b"\0")) * 3000,
    ],
)
@pytest.mark.parametrize("seekable", [True, False])
def test_hostile_archive_is_an_error_or_has_nothing(tmp_path: Path, content: bytes, seekable: bool) -> None:
    path = tmp_path / ("a.tar" if seekable else "a.tar.gz")
    path.write_bytes(content if seekable else gzip.compress(content))
    with pytest.raises(LocalError):
        checksum(path)


def test_members_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    path = packed(tmp_path / "a", [(str(number), b"") for number in range(4)])
    with path.open("rb") as file, pytest.raises(LocalError, match="more than 3 members"):
        list(members(file, "a"))


def test_names_are_shown_without_control_characters(daemon: Daemon, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.tar", [("\x1b[2J", b""), *((f"disk{number}", b"") for number in range(30))])
    with pytest.raises(LocalError, match=r"has no member x, but \\x1b\[2J, disk0, .*, 11 more$"):
        upload(path, daemon.url("ticket"), member="x")


def test_pipe_by_a_name_is_no_archive(tmp_path: Path) -> None:
    """Opening it would wait for ever."""
    os.mkfifo(tmp_path / "a.ova")
    with pytest.raises(LocalError, match=r"a\.ova is not a regular file or block device"):
        disks(tmp_path / "a.ova")
