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

#: Clusters have 64 KiB, as those that qemu makes, or the least power of two above with which a disk has few enough.
MIN_CLUSTER_BITS, MAX_CLUSTER_BITS = 16, 21
_MOST_BITS = int(lib.IOU_PACKED_CLUSTERS).bit_length() - 1
#: Bytes of the largest disk: its map has 4 MiB.
LARGEST = 1 << (MAX_CLUSTER_BITS + _MOST_BITS)


class PackedDisk:
    """A handle of C from which the file is read.

    A lane that reads it has a reference of its own: close it when that has begun. The file is that of the extents that
    were told, and all reads are of this one file. Its data is that of the time of each read. The image must not be
    closed before this is, nor before the lane has ended. Raises InvalidRequest if the disk is too large, Canceled if
    the image was closed, StorageError.
    """

    def __init__(self, image: Backend, size: int) -> None:
        result = ffi.new("iou_handle **")
        with image.lane_handle() as handle:
            check(lib.iou_packed_new(handle, size, cluster_bits(size), result), "make a qcow2 file")
        self._size = size
        self.handle: Any = ffi.gc(result[0], lib.iou_packed_free)
        #: Bytes of the file.
        self.length = 0
        #: What tells its layout from that of any other file.
        self.layout = ""
        #: The generation of the image that was told, or 0 if changes of it may go unseen; the layout is "" then.
        self.generation = 0

    def tell(self, found: ExtentList) -> None:
        """Tell what follows in the disk. Raises StorageError."""
        ends, flags = ffi.from_buffer("uint64_t[]", found.bounds[1:]), ffi.from_buffer("uint8_t[]", found.flags)
        check(lib.iou_packed_tell(self.handle, ends, flags, len(found)), "make a qcow2 file")

    def place(self, generation: int) -> None:
        """End telling, of an image of that generation. Raises Shortened if it was not all of the disk, StorageError."""
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
