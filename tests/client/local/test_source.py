# SPDX-License-Identifier: Apache-2.0
"""Reads of files and block devices."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, upload
from imageio_daemon.client.local.source import FileSource, opened_image
from imageio_daemon.client.transfer.memory import new_buffer
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType

SIZES = {512: 4 * MiB + 512, 4096: 4 * MiB}  # the last sector of the first is no whole block


@pytest.fixture(params=SIZES)
def device(request: pytest.FixtureRequest, make_storage: Callable[[StorageType], Storage]) -> Path:
    """A block device with a pattern, none of which is in the page cache."""
    kind = next(t for t in STORAGE_TYPES if t.sector_size == request.param)
    path = make_storage(kind).make(SIZES[request.param])
    with path.open("r+b") as file:
        file.write(pattern(SIZES[request.param]))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def is_cached(device: Path, offset: int) -> bool:
    with device.open("rb", buffering=0) as file:
        try:
            return bool(os.preadv(file.fileno(), [bytearray(512)], offset, os.RWF_NOWAIT))
        except BlockingIOError:
            return False


def test_device_is_read_past_the_page_cache(daemon: Daemon, tls: Settings, device: Path, new_image: MakeImage) -> None:
    with contextlib.closing(FileSource(device)) as source:
        size = source.size
    target = new_image(size=size)
    upload(device, daemon.url(target.ticket), settings=tls, verify=True, format="raw")
    assert target.content() == pattern(size)
    assert not is_cached(device, MiB)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 8 * KiB), (512, 8 * KiB), (4096, 100), (4 * MiB - 8192, 8192), (4 * MiB - 100, 100)]
)
@pytest.mark.parametrize("shift", [0, 512, 1])
def test_reads_of_a_device_need_no_alignment(device: Path, offset: int, length: int, shift: int) -> None:
    with contextlib.closing(FileSource(device)) as source:
        buffer = new_buffer(length + shift)[shift:]
        source.read(offset, buffer)
        assert buffer == pattern(4 * MiB + 512)[offset : offset + length]


def test_last_sector_of_a_device_is_read(device: Path) -> None:
    with contextlib.closing(FileSource(device)) as source:
        buffer = new_buffer(MiB)[: source.size % MiB or MiB]
        source.read(source.size - len(buffer), buffer)
        assert buffer == pattern(source.size)[source.size - len(buffer) :]


def test_failed_read_of_an_opened_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "image").touch()
    with pytest.raises(LocalError, match=r"can't read .*image: Input/output error"), opened_image(tmp_path / "image"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
