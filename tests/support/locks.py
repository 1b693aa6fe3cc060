# SPDX-License-Identifier: Apache-2.0
"""Locks of images as qemu has them: shared ones of single bytes, of an open file description (fcntl(2))."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.nbdservers import qemu_nbd
from tests.support.polling import eventually

#: The bytes of uses, and of uses that are not for others.
READ, WRITE, RESIZE = 100, 101, 103
NO_READ, NO_WRITE, NO_RESIZE = 200, 201, 203
#: What a virtual machine has locked of a disk that is its own.
GUEST = (READ, WRITE, NO_WRITE, NO_RESIZE)


@contextmanager
def locked(path: Path, *positions: int, kind: int = fcntl.F_RDLCK) -> Iterator[None]:
    """Hold locks of these bytes."""
    fd = os.open(path, os.O_RDWR)
    try:
        for position in positions:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, position, 1, 0))
        yield
    finally:
        os.close(fd)


@contextmanager
def served(path: Path, image_format: str, *options: str) -> Iterator[None]:
    """Have a qemu-nbd serve an image. It listens before it has its locks, of which that of the resize is the last."""
    with qemu_nbd(path, image_format, *options):
        last = {NO_RESIZE} if "--read-only" in options else {WRITE, NO_RESIZE}
        eventually(lambda: last <= locks(path), "qemu-nbd has the image")
        yield


def locks(path: Path) -> set[int]:
    """Return the bytes of a file that anybody has locked."""
    inode = str(path.stat().st_ino)
    found: set[int] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, *_, where, first, last = line.replace("-> ", "").split()
        if kind == "OFDLCK" and where.rpartition(":")[2] == inode:
            found.update(range(int(first), int(last) + 1))
    return found
