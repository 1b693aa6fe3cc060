# SPDX-License-Identifier: Apache-2.0
"""The disk of an open image as a qcow2 file, which C makes as it is read."""

import errno
import hashlib
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import InvalidRequest, Shortened
from ..image.extents import ExtentList
from ..units import TiB
from .backend import Backend
from .completions import check

#: Clusters have 64 KiB, as in qemu. A disk that would have too many has the next larger ones with which it has not.
MIN_CLUSTER_BITS, MAX_CLUSTER_BITS = 16, 21
_MOST_BITS = int(lib.IOU_PACKED_CLUSTERS).bit_length() - 1
#: Bytes of the largest disk: its map has 4 MiB.
LARGEST = 1 << (MAX_CLUSTER_BITS + _MOST_BITS)


class PackedDisk:
    """A handle of C from which the file is read.

    Add all extents by tell(), then call place(). All reads see the file with these extents, and the data that the image
    has at the time of the read. A lane has its own reference to the handle, so call close() when the lane has begun. Do
    not close the image before that, nor before the lane has ended. Raises InvalidRequest if the disk is too large,
    Canceled if the image was closed, and StorageError.
    """

    def __init__(self, image: Backend, size: int) -> None:
        result = ffi.new("iou_handle **")
        with image.lane_handle() as handle:
            check(lib.iou_packed_new(handle, size, cluster_bits(size), result), "make a qcow2 file")
        self._size = size
        self.handle: Any = ffi.gc(result[0], lib.iou_packed_free)
        #: Bytes of the file.
        self.length = 0
        #: A text that is different for each layout of the file.
        self.layout = ""
        #: The generation of the image, or 0 if its changes may go unseen; then the layout is "".
        self.generation = 0

    def tell(self, found: ExtentList) -> None:
        """Add the next extents of the disk. Raises StorageError."""
        ends, flags = ffi.from_buffer("uint64_t[]", found.bounds[1:]), ffi.from_buffer("uint8_t[]", found.flags)
        check(lib.iou_packed_tell(self.handle, ends, flags, len(found)), "make a qcow2 file")

    def place(self, generation: int) -> None:
        """Lay the file out when all extents were added. They are those of this generation of the image.

        Raises Shortened if the extents do not reach the end of the disk, and StorageError.
        """
        where, size, info = ffi.new("void **"), ffi.new("uint64_t *"), ffi.new("iou_info *")
        code = lib.iou_packed_place(self.handle, where, size)
        if code == -errno.ENODATA:
            raise Shortened("The image became shorter while it was looked at")
        check(code, "make a qcow2 file")
        lib.iou_handle_info(self.handle, info)
        self.length = int(info.size)
        if generation:  # 7 ms for a map of 4 MiB
            self.generation = generation
            self.layout = f"{self._size} {hashlib.sha256(ffi.buffer(where[0], size[0])).hexdigest()}"

    def close(self) -> None:
        """Give the handle back. Later calls do nothing."""
        ffi.release(self.handle)


def cluster_bits(size: int) -> int:
    """Return the bits of the size of clusters for a disk. Raises InvalidRequest if it is too large."""
    if size > LARGEST:
        raise InvalidRequest(f"A disk of more than {LARGEST // TiB} TiB is not sent as a qcow2 file")
    return max(MIN_CLUSTER_BITS, (size - 1).bit_length() - _MOST_BITS)


def map_size(size: int) -> int:
    """Return how many bytes the map of a disk takes. Raises InvalidRequest if the disk is too large."""
    return (max(size, 1) - 1 >> cluster_bits(size)) // 8 + 1
