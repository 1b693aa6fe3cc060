# SPDX-License-Identifier: Apache-2.0
"""An image in memory below the C code: every system call is recorded, and fails as a test wants it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.syscalls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE

from .engine_driver import Image
from .syscall_table import replaced

PUNCH_HOLE = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
MODES = {
    PUNCH_HOLE: "punch_hole",
    FALLOC_FL_ZERO_RANGE: "zero_range",
    FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE: "zero_range",
    0: "fallocate",
    FALLOC_FL_KEEP_SIZE: "fallocate",
}


KiB = 1024
SIZE = 256 * KiB
CONTENT = (bytes(range(1, 256)) * (SIZE // 255 + 1))[:SIZE]  # no zeros


class Call(NamedTuple):
    name: str
    offset: int
    length: int


class FakeImage:
    """Content, and a fault for each call by name: an errno for ever, or one for each of the next calls (0: none).

    placeholder is what open() really opens, so that the C code sees a regular file or a block device; nothing of
    its content is used. A block device is opened with O_PATH, which needs no permission and can do no I/O.
    """

    def __init__(self, placeholder: Path, content: bytes, *, is_block: bool) -> None:
        self.placeholder = placeholder
        self.content = bytearray(content)
        self.is_block = is_block
        self.faults: dict[str, int | list[int]] = {}
        self.calls: list[Call] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        names = ["open", "pread", "pwrite", "fallocate", "blkzeroout", "ftruncate", "size"]
        names += ["fdatasync", "write_back", "drop_clean", "lseek", "lock", "locked"]
        with replaced(**{name: getattr(self, name) for name in names}):
            yield

    def opened(self) -> Image:
        """Open a handle; the fake must be installed. Nobody else uses it, and O_PATH knows no locks."""
        return Image(self.placeholder, shared=True)

    def names(self, *wanted: str) -> list[str]:
        """Return the names of the calls made, repetitions left out; only the wanted ones if any are given."""
        names: list[str] = []
        for call in self.calls:
            if (not wanted or call.name in wanted) and names[-1:] != [call.name]:
                names.append(call.name)
        return names

    def open(self, path: str, flags: int) -> int:
        if self.is_block:
            return os.open(self.placeholder, os.O_PATH)
        return os.open(self.placeholder, flags)

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._enter("pread", offset, len(buffer))
        data = self.content[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._enter("pwrite", offset, len(buffer))
        self._grow(offset + len(buffer))
        self.content[offset : offset + len(buffer)] = buffer
        return len(buffer)

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> int:
        name = MODES[mode]
        self._enter(name, offset, length)
        end = offset + length
        if not mode & FALLOC_FL_KEEP_SIZE and not self.is_block:
            self._grow(end)
        if name != "fallocate":
            self._clear(offset, end)
        return 0

    def blkzeroout(self, fd: int, offset: int, length: int) -> int:
        self._enter("blkzeroout", offset, length)
        self._clear(offset, offset + length)
        return 0

    def ftruncate(self, fd: int, size: int) -> int:
        self._enter("ftruncate", 0, size)
        assert size >= self.size(fd), "the file was cut"
        self._grow(size)
        return 0

    def size(self, fd: int) -> int:
        self._enter("size", 0, 0)
        return len(self.content)

    def fdatasync(self, fd: int) -> int:
        self._enter("fdatasync", 0, 0)
        return 0

    def write_back(self, fd: int, offset: int, length: int) -> int:
        self._enter("write_back", offset, length)
        return 0

    def drop_clean(self, fd: int, offset: int, length: int) -> int:
        self._enter("drop_clean", offset, length)
        return 0

    def lseek(self, fd: int, offset: int, whence: int) -> int:
        self._enter("lseek", offset, whence)
        if self.is_block:
            raise OSError(errno.EINVAL, "block devices know no holes")
        return offset if whence == os.SEEK_DATA else len(self.content)

    def lock(self, fd: int, byte: int) -> int:
        return 0  # a descriptor of O_PATH cannot be locked

    def locked(self, fd: int, byte: int) -> int:
        return 0

    def _enter(self, name: str, offset: int, length: int) -> None:
        self.calls.append(Call(name, offset, length))
        fault: Any = self.faults.get(name, 0)
        if isinstance(fault, list):
            fault = fault.pop(0) if fault else 0
        if fault:
            raise OSError(fault, os.strerror(fault))

    def _grow(self, size: int) -> None:
        if size > len(self.content):
            if self.is_block:
                raise OSError(errno.ENOSPC, "past the end of the device")
            self.content.extend(bytes(size - len(self.content)))

    def _clear(self, offset: int, end: int) -> None:
        end = min(end, len(self.content))
        if offset < end:
            self.content[offset:end] = bytes(end - offset)


class HugeImage(FakeImage):
    """Size without content, for requests of many steps."""

    def __init__(self, placeholder: Path, size: int, *, is_block: bool) -> None:
        super().__init__(placeholder, b"", is_block=is_block)
        self.total = size

    def size(self, fd: int) -> int:
        return self.total

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._enter("pread", offset, len(buffer))
        return len(buffer)

    def _grow(self, size: int) -> None:
        if self.is_block:
            assert size <= self.total
        self.total = max(size, self.total)


@contextmanager
def opened(fake: FakeImage, **faults: int | list[int]) -> Iterator[Image]:
    """Open the fake as a new image, with nothing learnt, and set its faults."""
    fake.faults = {}
    fake.content[:] = CONTENT
    with fake.opened() as image:
        fake.calls.clear()
        fake.faults = dict(faults)
        yield image
        fake.faults = {}


def zeroed(offset: int, length: int) -> bytes:
    expected = bytearray(CONTENT)
    expected[offset : offset + length] = bytes(length)
    return bytes(expected)
