# SPDX-License-Identifier: Apache-2.0
"""The new file of a download: who may read it, and what it has from the file that it replaces."""

import errno
import fcntl
import os
import resource
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, download
from imageio_daemon.client.local.compressing import CompressedFile
from imageio_daemon.client.local.part_file import PartFile
from imageio_daemon.client.local.qemu import QemuTarget
from imageio_daemon.client.local.target import NewFile
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern

NOBODY = 65534
FORMATS = ("raw", "qcow2", "vmdk", "vhdx", "vpc", "vdi")
ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def acl(*entries: tuple[int, int, int]) -> bytes:
    """Return the attribute for entries of tag, permissions and id (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


#: The owner reads and writes, user 1234 reads, others do nothing.
FOR_ONE_USER = acl((1, 6, -1), (2, 4, 1234), (4, 0, -1), (0x10, 4, -1), (0x20, 0, -1))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """An older copy that others may not read."""
    path = tmp_path / "copy"
    path.write_bytes(b"older")
    path.chmod(0o600)
    return path


def test_no_part_file_is_left_where_files_have_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LocalError, match="No locks available"):
        PartFile(tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_link_that_leads_elsewhere_meanwhile_is_not_followed(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(copy)
    other.touch()
    monkeypatch.setattr(os.path, "realpath", lambda _: str(other))
    with pytest.raises(LocalError, match="link was changed meanwhile"):
        PartFile(link)
    assert copy.read_bytes() == b"older"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual umask, with which new files can be read by all."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A directory that all users can reach."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def replace(path: Path, content: bytes = b"newer") -> None:
    """Replace a file as downloads do."""
    new = NewFile(path)
    new.write(0, memoryview(content))
    new.finish()


@pytest.mark.parametrize("format_name", FORMATS)
def test_download_over_a_file_keeps_its_mode(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, copy: Path, format_name: str
) -> None:
    download(daemon.url(new_image(path=disk, ops=["read"]).ticket), copy, settings=tls, format=format_name)
    assert (mode(copy), copy.stat().st_size > len(b"older")) == (0o600, True)


def test_compressed_download_over_a_file_keeps_its_mode(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gz"
    copy.touch(0o600)
    download(daemon.url(new_image(pattern(512), ops=["read"]).ticket), copy, settings=tls)
    assert (mode(copy), copy.stat().st_size > 0) == (0o600, True)


def test_part_is_readable_by_no_more_than_the_older_file(copy: Path) -> None:
    new = CompressedFile(copy, "gz")
    assert mode(copy.with_name("copy.part")) == 0o600
    new.abandon()
    assert copy.read_bytes() == b"older"


def test_new_file_has_what_umask_leaves(tmp_path: Path) -> None:
    replace(tmp_path / "copy")
    assert mode(tmp_path / "copy") == 0o644


def test_wider_mode_is_kept_in_spite_of_umask(copy: Path) -> None:
    copy.chmod(0o666)
    replace(copy)
    assert mode(copy) == 0o666


def test_mode_that_was_changed_meanwhile_counts(copy: Path) -> None:
    copy.chmod(0o644)
    new = NewFile(copy)
    copy.chmod(0o600)
    new.finish()
    assert mode(copy) == 0o600


def test_set_user_id_is_not_kept(copy: Path) -> None:
    copy.chmod(0o4700)
    replace(copy)
    assert mode(copy) == 0o700


@needs_root
def test_owner_is_kept(copy: Path) -> None:
    os.chown(copy, NOBODY, 1234)
    replace(copy)
    assert (copy.stat().st_uid, copy.stat().st_gid, mode(copy)) == (NOBODY, 1234, 0o600)


def test_acl_is_kept(copy: Path) -> None:
    os.setxattr(copy, ACL, FOR_ONE_USER)
    replace(copy)
    assert os.getxattr(copy, ACL) == FOR_ONE_USER


def test_acl_of_the_directory_is_not_added(copy: Path) -> None:
    os.setxattr(copy.parent, DEFAULT_ACL, FOR_ONE_USER)
    replace(copy)
    assert (ACL in os.listxattr(copy), mode(copy)) == (False, 0o600)


def test_acl_of_the_directory_counts_for_a_new_file(copy: Path) -> None:
    os.setxattr(copy.parent, DEFAULT_ACL, FOR_ONE_USER)
    copy.unlink()
    replace(copy)
    assert os.getxattr(copy, ACL) == FOR_ONE_USER


def test_extended_attributes_are_kept(copy: Path) -> None:
    os.setxattr(copy, "user.origin", b"a host")
    replace(copy)
    assert os.getxattr(copy, "user.origin") == b"a host"


@needs_root
def test_capabilities_of_the_older_content_are_not_kept(copy: Path) -> None:
    os.setxattr(copy, "security.capability", struct.pack("<5I", 0x02000000, 1, 0, 0, 0))
    replace(copy)
    assert "security.capability" not in os.listxattr(copy)


def test_symbolic_link_is_followed(copy: Path) -> None:
    (copy.parent / "elsewhere").mkdir()
    link = copy.parent / "elsewhere" / "link"
    link.symlink_to("../copy")
    replace(link)
    assert (link.is_symlink(), copy.read_bytes(), mode(copy)) == (True, b"newer", 0o600)
    assert os.listdir(link.parent) == ["link"]


def test_link_to_nothing_yet_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("copy")
    replace(tmp_path / "link")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "copy").read_bytes()) == (True, b"newer")


@pytest.mark.parametrize("length", range(250, 256))
def test_name_may_be_as_long_as_the_file_system_takes(tmp_path: Path, length: int) -> None:
    replace(tmp_path / ("é" * (length // 2) + "x" * (length % 2)))
    assert [len(os.fsencode(name)) for name in os.listdir(tmp_path)] == [length]


def test_two_downloads_dont_write_one_file_with_a_long_name(tmp_path: Path) -> None:
    first = PartFile(tmp_path / ("x" * 255))
    with pytest.raises(LocalError, match=r"\.part is being written by another download"):
        PartFile(tmp_path / ("x" * 255))
    first.remove()
    assert os.listdir(tmp_path) == []


def test_file_whose_image_cant_be_closed_is_left_for_the_next_download(tmp_path: Path) -> None:
    failed = QemuTarget(tmp_path / "copy", "qcow2", continues=True)
    failed.start(MiB)
    assert failed._image is not None
    failed._image._process.kill()
    with pytest.raises(LocalError, match="qemu-nbd failed"):
        failed.keep()
    left = PartFile(tmp_path / "copy", continues=True)
    assert left.is_earlier
    left.remove()


def test_who_has_the_part_of_a_killed_download_open_reads_nothing_of_the_next(copy: Path) -> None:
    left = copy.with_name("copy.part")
    left.write_bytes(b"left")
    with left.open("rb") as spy:
        replace(copy)
        assert spy.read() == b"left"


def test_link_in_the_place_of_the_part_is_not_followed(copy: Path) -> None:
    copy.with_name("copy.part").symlink_to("victim")
    copy.with_name("victim").write_bytes(b"of another")
    with pytest.raises(LocalError, match=r"can't write .*copy\.part"):
        NewFile(copy)
    assert copy.with_name("victim").read_bytes() == b"of another"


@needs_root
def test_owner_that_cant_be_kept_is_told_before_anything_is_written(everybodys: Path) -> None:
    copy = everybodys / "copy"
    copy.touch()
    copy.chmod(0o666)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(LocalError, match=r"can't keep the owner of .*copy: Operation not permitted: remove it"):
            NewFile(copy)
    finally:
        os.seteuid(0)
    assert os.listdir(everybodys) == ["copy"]


@needs_root
def test_part_that_cant_be_removed_is_told_and_unlocked(everybodys: Path) -> None:
    os.seteuid(NOBODY)
    try:
        part = PartFile(everybodys / "copy")
        os.seteuid(0)
        os.chmod(everybodys, 0o755)
        os.seteuid(NOBODY)
        with pytest.raises(LocalError, match=r"can't remove .*copy\.part: Permission denied"):
            part.remove()
    finally:
        os.seteuid(0)
    PartFile(everybodys / "copy").remove()


@needs_root
def test_file_that_may_not_be_written_is_not_replaced(everybodys: Path) -> None:
    copy = everybodys / "copy"
    copy.touch()
    os.chown(copy, NOBODY, NOBODY)
    copy.chmod(0o444)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(LocalError, match=r"can't write .*copy: Permission denied"):
            NewFile(copy)
    finally:
        os.seteuid(0)


def test_compressed_file_that_cant_be_closed_is_told_and_removed(tmp_path: Path) -> None:
    new = CompressedFile(tmp_path / "copy.gz", "gz")
    os.close(new._file.fileno())
    with pytest.raises(LocalError, match=r"can't write .*copy\.gz\.part: Bad file descriptor"):
        new.abandon()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [False, True])
def test_attribute_that_cant_be_kept_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch, *, left: bool) -> None:
    """What an earlier download has left stays."""
    part = copy.with_name("copy.part")
    if left:
        part.write_bytes(b"left")
        part.chmod(0o600)
    os.setxattr(copy, "user.origin", b"a host")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(LocalError, match=r"can't keep the attributes of .*: No space left"):
        NewFile(copy, continues=True)
    assert part.exists() == left


def test_part_that_cant_be_opened_again_stays_for_the_next_download(tmp_path: Path) -> None:
    part = tmp_path / "copy.part"
    part.write_bytes(b"left")
    free, (soft, hard) = [os.open("/", os.O_PATH) for _ in range(2)], resource.getrlimit(resource.RLIMIT_NOFILE)
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))  # enough for it and its directory
    try:
        with pytest.raises(LocalError, match=r"can't open .*copy\.part: Too many open files"):
            NewFile(tmp_path / "copy", continues=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert part.read_bytes() == b"left"
