# SPDX-License-Identifier: Apache-2.0
"""Downloads by the library, against the daemon."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Refused, Settings, checksum, download, extents, info
from imageio_daemon.client.local.part_file import PartFile
from imageio_daemon.client.local.target import NewFile
from tests.client.conftest import SIZE
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType, allocated, missing, mounted


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The file to make, in a directory of its own."""
    directory = tmp_path / "copies"
    directory.mkdir()
    return directory / "copy.raw"


@pytest.fixture
def url(daemon: Daemon, source: Path, new_image: MakeImage) -> str:
    """The URL of the source."""
    return daemon.url(new_image(path=source, ops=["read"]).ticket)


def test_copy_equals_the_image(settings: Settings, url: str, source: Path, copy: Path) -> None:
    done = download(url, copy, settings=settings)
    assert copy.read_bytes() == source.read_bytes()
    assert done.local is settings.local
    assert done.progress.done == done.progress.total == SIZE + 1


def test_only_data_goes_over_the_wire(tls: Settings, url: str, copy: Path) -> None:
    # Zeros that are stored as data do.
    assert download(url, copy, settings=tls).progress.data < 7 * MiB


def test_copy_is_sparse(tls: Settings, url: str, copy: Path) -> None:
    download(url, copy, settings=tls)
    assert allocated(copy) < 6 * MiB


@pytest.mark.parametrize("size", [0, 1, 511, 64 * KiB, 4 * MiB + 1])
def test_any_size_is_downloaded(
    daemon: Daemon, settings: Settings, new_image: MakeImage, copy: Path, size: int
) -> None:
    image = new_image(pattern(size))
    download(daemon.url(image.ticket), copy, settings=settings, verify=True)
    assert copy.read_bytes() == pattern(size)


@pytest.mark.parametrize("name", ["copy.raw", "copy.qcow2", "copy.vmdk", "copy.raw.gz"])
def test_full_file_system_is_told(
    daemon: Daemon, tls: Settings, new_image: MakeImage, small_filesystem: Path, name: str
) -> None:
    url = daemon.url(new_image(pattern(8 * MiB), ops=["read"]).ticket)
    with pytest.raises(LocalError, match="No space left on device"):
        download(url, small_filesystem / name, settings=tls, state=False)
    assert not list(small_filesystem.iterdir())


def test_older_copy_is_replaced(tls: Settings, url: str, source: Path, copy: Path) -> None:
    copy.write_bytes(b"older")
    download(url, copy, settings=tls)
    assert copy.read_bytes() == source.read_bytes()


def test_stream_gets_all_bytes_in_order(settings: Settings, url: str, source: Path, tmp_path: Path) -> None:
    with (tmp_path / "stream").open("wb") as stream:
        download(url, stream, settings=settings)
    assert (tmp_path / "stream").read_bytes() == source.read_bytes()


def test_stream_is_written_through_its_own_methods(tls: Settings, url: str, source: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "packed", "wb", 1) as stream:
        download(url, stream, settings=tls)  # type: ignore[arg-type]
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == source.read_bytes()


def test_block_device_gets_zeros_too(
    tls: Settings, daemon: Daemon, new_image: MakeImage, make_storage: Callable[[StorageType], Storage]
) -> None:
    device = make_storage(next(t for t in STORAGE_TYPES if t.is_block)).make(8 * MiB)
    with device.open("r+b") as f:
        f.write(b"\xff" * 8 * MiB)
    image = new_image(pattern(MiB) + bytes(5 * MiB) + pattern(MiB, 1))
    download(daemon.url(image.ticket), device, settings=tls)
    assert device.read_bytes() == image.content() + b"\xff" * MiB


def test_device_that_is_too_small_is_refused(
    tls: Settings, url: str, make_storage: Callable[[StorageType], Storage]
) -> None:
    device = make_storage(next(t for t in STORAGE_TYPES if t.is_block)).make(8 * MiB)
    with pytest.raises(LocalError, match="does not fit"):
        download(url, device, settings=tls)


def test_checksums_are_compared(settings: Settings, url: str, source: Path, copy: Path) -> None:
    done = download(url, copy, settings=settings, verify=True)
    assert done.checksum == checksum(source) == checksum(url, settings=settings)


def test_dirty_extents_of_a_file_are_not_known(tls: Settings, url: str, copy: Path) -> None:
    copy.touch()
    with pytest.raises(Refused, match="does not know what has changed: download all"):
        download(url, copy, settings=tls, dirty=True)
    assert copy.exists()


@pytest.mark.parametrize("format_name", ["raw", "qcow2"])
def test_two_downloads_dont_write_one_file(tls: Settings, url: str, source: Path, copy: Path, format_name: str) -> None:
    first = NewFile(copy)
    with pytest.raises(LocalError, match=r"copy.raw.part is being written by another download"):
        download(url, copy, settings=tls, format=format_name)
    first.start(3)
    first.write(0, memoryview(b"one"))
    first.finish()
    assert copy.read_bytes() == b"one"


def test_file_that_cant_take_its_name_is_told_and_removed(copy: Path) -> None:
    new = NewFile(copy)
    copy.mkdir()
    with pytest.raises(LocalError, match=r"can't write .*copy.raw: Is a directory"):
        new.finish()
    new.abandon()
    assert os.listdir(copy.parent) == [copy.name]


def test_part_of_a_killed_download_is_replaced(tls: Settings, url: str, source: Path, copy: Path) -> None:
    copy.with_name("copy.raw.part").write_bytes(pattern(2 * SIZE))
    download(url, copy, settings=tls)
    assert copy.read_bytes() == source.read_bytes()
    assert os.listdir(copy.parent) == [copy.name]


def test_failure_leaves_no_file(daemon: Daemon, tls: Settings, copy: Path) -> None:
    with pytest.raises(Refused, match="403"):
        download(daemon.url("no-such-ticket"), copy, settings=tls)
    assert os.listdir(copy.parent) == []


def test_failure_is_told_also_if_the_part_cant_be_removed(
    daemon: Daemon, tls: Settings, copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: PartFile) -> None:
        raise LocalError("can't remove it")

    monkeypatch.setattr(PartFile, "remove", fail)
    with pytest.raises(Refused, match="403"):
        download(daemon.url("no-such-ticket"), copy, settings=tls)
    assert "can't remove it" in caplog.text


def test_directory_is_no_target(tls: Settings, url: str, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is not a regular file or block device"):
        download(url, tmp_path, settings=tls)


def test_missing_directory_is_told(tls: Settings, url: str) -> None:
    with pytest.raises(LocalError, match=r"can't write /no/such/copy.part: No such file"):
        download(url, "/no/such/copy", settings=tls)


def test_full_disk_is_told(tls: Settings, url: str, tmp_path: Path) -> None:
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, MiB) as directory:
        with pytest.raises(LocalError, match=r"can't write .*copy.part: No space left on device"):
            download(url, directory / "copy", settings=tls, state=False)
        assert os.listdir(directory) == []


def test_info_tells_of_both_sides(settings: Settings, url: str, source: Path) -> None:
    there, here = info(url, settings=settings), info(source)
    assert (there.size, there.data, there.zero) == (here.size, here.data, here.zero)
    assert there.local is settings.local
    assert "extents" in there.features


def test_extents_are_listed(tls: Settings, url: str) -> None:
    found = extents(url, settings=tls)
    assert sum(extent.length for extent in found) == SIZE + 1
    assert found[0].zero


@pytest.mark.parametrize("algorithm", ["blake2b", "sha256"])
def test_checksum_is_that_of_the_server(tls: Settings, url: str, source: Path, algorithm: str) -> None:
    here = checksum(source, algorithm=algorithm, block_size=MiB)
    assert here == checksum(url, settings=tls, algorithm=algorithm, block_size=MiB)
