# SPDX-License-Identifier: Apache-2.0
"""The content of images, as made and as found by others."""

import os
import random
from pathlib import Path

from tests.support.realstorage import Storage

KiB = 1024


def on_disk(path: Path) -> bytes:
    """Return the content as another program finds it after the page cache was dropped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.lseek(fd, 0, os.SEEK_END)
        content = b""
        while piece := os.pread(fd, size, len(content)):
            content += piece
        return content
    finally:
        os.close(fd)


def filled(storage: Storage, size: int, seed: int = 1) -> tuple[Path, bytearray]:
    """Make an image of random content."""
    path = storage.make(size)
    return path, fill(path, size, seed)


def fill(path: Path, size: int, seed: int) -> bytearray:
    """Write random content; a file has exactly this size then, a device must have it already."""
    content = random.Random(seed).randbytes(size)
    # O_TRUNC means nothing to a device.
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return bytearray(content)


def first_difference(actual: bytes, expected: bytes | bytearray) -> str:
    """Say where two contents part; comparing them in an assert would print megabytes."""
    if len(actual) != len(expected):
        return f"{len(actual)} bytes, not {len(expected)}"
    if actual == bytes(expected):
        return ""
    at = next(i for i, (a, b) in enumerate(zip(actual, expected, strict=True)) if a != b)
    return f"byte {at} is {actual[at : at + 8].hex()}, not {bytes(expected[at : at + 8]).hex()}"
