# SPDX-License-Identifier: Apache-2.0
"""Locks of images as qemu takes them: shared locks of single bytes, by an open file description (fcntl(2))."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.nbdservers import qemu_nbd
from tests.support.polling import eventually

#: The bytes for uses of an image, and for uses that others may not have at the same time.
READ, WRITE, RESIZE = 100, 101, 103
NO_READ, NO_WRITE, NO_RESIZE = 200, 201, 203
#: The locks of a virtual machine on its own disk.
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
    """Have a qemu-nbd serve an image. It listens before it has all locks; the lock for resizing is the last."""
    with qemu_nbd(path, image_format, *options):
        last = {NO_RESIZE} if "--read-only" in options else {WRITE, NO_RESIZE}
        eventually(lambda: last <= locks(path), "qemu-nbd has the image")
        yield


def locks(path: Path) -> set[int]:
    """Return the bytes of a file that any process has locked."""
    inode = str(path.stat().st_ino)
    found: set[int] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, *_, where, first, last = line.replace("-> ", "").split()
        if kind == "OFDLCK" and where.rpartition(":")[2] == inode:
            found.update(range(int(first), int(last) + 1))
    return found
