# SPDX-License-Identifier: Apache-2.0
"""A disk as a qcow2 file that C makes as it is read."""

import os
from array import array
from collections.abc import Iterable
from typing import Any, Self

from ioutil_ext import ffi, lib

from ..ioutil.engine_driver import Image

#: End of an extent, and whether it has data.
Told = tuple[int, bool]


class Packed(Image):
    """The file of the disk of an open image, each operation run in the calling thread. Raises OSError."""

    def __init__(self, disk: Image, size: int, told: Iterable[Told], bits: int = 16) -> None:
        result = ffi.new("iou_handle **")
        self._check(lib.iou_packed_new(disk.handle, size, bits, result))
        self.handle = ffi.gc(result[0], lib.iou_packed_free)
        try:
            self.tell(told)
            self.place()
        except BaseException:
            self.close()
            raise

    def tell(self, told: Iterable[Told]) -> None:
        for end, data in told:
            flags = ffi.new("uint8_t[]", [0 if data else lib.IOU_EXTENT_ZERO])
            self._check(lib.iou_packed_tell(self.handle, ffi.from_buffer("uint64_t[]", array("Q", [end])), flags, 1))

    def place(self) -> None:
        where, length = ffi.new("void **"), ffi.new("uint64_t *")
        self._check(lib.iou_packed_place(self.handle, where, length))
        self.map = bytes(ffi.buffer(where[0], length[0]))

    def content(self) -> bytes:
        return self.read(0, self.info.size)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        ffi.release(handle)

    def __enter__(self) -> Self:
        return self

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise OSError(-status, os.strerror(-status))


def told_by(disk: Any) -> list[Told]:
    """Return what the disk itself tells."""
    return [(start + length, not kind & lib.IOU_EXTENT_ZERO) for start, length, kind in disk.all_extents()]
