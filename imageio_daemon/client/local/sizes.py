# SPDX-License-Identifier: Apache-2.0
"""The decompressed size of compressed files, from their headers, without decompressing them.

This size is a claim, which StreamSource compares with the data. It is None if the headers do not tell it, or contradict
each other.
"""

import os

from ...image.magics import ZSTD
from ...units import KiB, MiB
from .compressed import zstd

#: Most bytes of the header of a zstd frame (RFC 8878, 3.1.1.1), without skippable frames.
ZSTD_HEADER = 18
_ZSTD_SKIPPABLE = 0x184D2A50 >> 4
_ZSTD_RLE = 1
#: Bytes of the header, and of the footer, of an xz stream (The .xz File Format, 2.1.1 and 2.1.2).
_XZ_EDGE = 12
#: Most bytes of the index of an xz stream, and of the padding between two streams. The index of `xz -T` has 8 bytes for
#: 24 MiB of the image.
XZ_INDEX = 16 * MiB
XZ_PADDING = 64 * KiB


def told_size(fd: int, kind: str) -> int | None:
    """Return the decompressed size, in bytes, of a regular file or block device, if its headers tell it."""
    end = os.lseek(fd, 0, os.SEEK_END)
    try:
        if kind == "zstd":
            return _zstd(fd, end)
        return _xz(fd, end) if kind == "xz" else None
    except (ValueError, IndexError):
        return None


def zstd_head(head: bytes) -> int | None:
    """Return the decompressed size in the header of a zstd frame, if it has one. A skippable frame has none."""
    if not head.startswith(ZSTD):
        return None  # libzstd would say 0 for a skippable one
    try:
        return zstd.get_frame_info(head).decompressed_size
    except zstd.ZstdError:
        return None


def _zstd(fd: int, end: int) -> int | None:
    """Add up the sizes in the headers of all frames, skipping the blocks."""
    total = position = 0
    while position < end:
        head = os.pread(fd, ZSTD_HEADER, position)
        if int.from_bytes(head[:4], "little") >> 4 == _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(head[4:8], "little")
            continue
        size = zstd_head(head)
        if size is None:
            return None
        total += size
        position = _zstd_end(fd, position, head[4])
    return total if position == end else None


def _zstd_end(fd: int, position: int, descriptor: int) -> int:
    """Return the position of a frame's end. Raises IndexError if the file ends before."""
    single = descriptor >> 5 & 1
    position += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]
    last = 0
    while not last:
        header = os.pread(fd, 3, position)
        last = header[0] & 1
        kind, length = header[0] >> 1 & 3, (header[0] | header[1] << 8 | header[2] << 16) >> 3
        position += 3 + (1 if kind == _ZSTD_RLE else length)
    return position + (4 if descriptor & 4 else 0)


def _xz(fd: int, end: int) -> int | None:
    """Add up the sizes of all streams, from the last one to the first. The index at the end of each has its blocks."""
    total = 0
    while end > 0:
        end = _without_padding(fd, end)
        footer = os.pread(fd, _XZ_EDGE, max(end - _XZ_EDGE, 0))
        length = (int.from_bytes(footer[4:8], "little") + 1) * 4
        if len(footer) != _XZ_EDGE or footer[10:] != b"YZ" or length > XZ_INDEX:
            return None
        start = end - _XZ_EDGE - length
        if start < _XZ_EDGE:
            return None
        packed, unpacked = _xz_index(os.pread(fd, length, start))
        total += unpacked
        end = start - packed - _XZ_EDGE
    return total if end == 0 else None


def _without_padding(fd: int, end: int) -> int:
    """Return the position before the zeros at the end. Raises ValueError if there are too many."""
    tail = os.pread(fd, min(end, XZ_PADDING), max(end - XZ_PADDING, 0))
    end -= len(tail) - len(tail.rstrip(b"\0"))
    if not tail.rstrip(b"\0"):
        raise ValueError("padding")
    return end


def _xz_index(index: bytes) -> tuple[int, int]:
    """Return the bytes of all blocks, compressed and decompressed. Raises ValueError, IndexError."""
    if index[0] != 0:
        raise ValueError("no index")
    records, position = _xz_number(index, 1)
    packed = unpacked = 0
    for _ in range(records):
        length, position = _xz_number(index, position)
        size, position = _xz_number(index, position)
        packed += -(-length // 4) * 4
        unpacked += size
    return packed, unpacked


def _xz_number(data: bytes, position: int) -> tuple[int, int]:
    """Return a number in at most 9 bytes with 7 bits each, and the position after it (1.2)."""
    value = 0
    for shift in range(0, 63, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    raise ValueError("a number is too long")
