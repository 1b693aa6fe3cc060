# SPDX-License-Identifier: Apache-2.0
"""System calls that Python's os module lacks."""

import ctypes
import fcntl
import os
import struct

FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02
FALLOC_FL_ZERO_RANGE = 0x10

BLKZEROOUT = 0x127F  # linux/fs.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2) with a mode, which os.posix_fallocate() has not."""
    if _libc.fallocate(fd, mode, offset, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def blkzeroout(fd: int, offset: int, length: int) -> None:
    """Zero a range of a block device, ioctl BLKZEROOUT."""
    fcntl.ioctl(fd, BLKZEROOUT, struct.pack("=QQ", offset, length))
