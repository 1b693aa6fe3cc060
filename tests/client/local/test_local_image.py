# SPDX-License-Identifier: Apache-2.0
"""The image on this side of a download."""

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon.client.errors import LocalError
from imageio_daemon.client.local.local_image import LocalImage
from tests.ioutil.syscall_table import real_open, real_pwrite, replaced
from tests.support.images import pattern

KiB = 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.touch()
    return path


def test_image_is_written_past_the_page_cache_where_that_is_possible(path: Path) -> None:
    tried = []

    def open_(path: str, flags: int) -> int:
        tried.append(bool(flags & os.O_DIRECT))
        return real_open(path, flags)

    with replaced(open=open_):
        LocalImage(path).close()
    assert tried[0]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP])
def test_storage_that_takes_direct_io_only_when_opened_is_written_without(path: Path, error: int) -> None:
    content, refused = pattern(256 * KiB), []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(fd)
            raise OSError(error, os.strerror(error))
        return real_pwrite(fd, buffer, offset)

    with replaced(pwrite=pwrite):
        image = LocalImage(path)
        with ThreadPoolExecutor(4) as pool:
            offsets = range(0, len(content), 4 * KiB)
            list(pool.map(lambda offset: image.write(offset, memoryview(content)[offset:][: 4 * KiB]), offsets))
        image.flush()
        image.close()
    if not refused:
        pytest.skip("no direct I/O here")
    assert path.read_bytes() == content
    assert len(refused) < len(offsets)


def test_storage_that_refuses_any_write_is_told(path: Path) -> None:
    def pwrite(_fd: int, _buffer: memoryview, _offset: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with replaced(pwrite=pwrite):
        image = LocalImage(path)
        with pytest.raises(LocalError, match="Invalid argument"):
            image.write(0, memoryview(b"x" * 4096))
        image.close()


def test_neighbours_that_share_a_block_are_written_by_several_threads(path: Path) -> None:
    content, step = memoryview(pattern(256 * KiB + 77)), 777
    image = LocalImage(path)
    with ThreadPoolExecutor(4) as pool:
        offsets = range(0, len(content), step)
        list(pool.map(lambda offset: image.write(offset, content[offset : offset + step]), offsets))
    image.flush()
    image.close()
    assert path.read_bytes() == content


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is not a regular file or block device"):
        LocalImage(tmp_path)
