# SPDX-License-Identifier: Apache-2.0
"""VMDK: only images in one file. Source: VMware's Virtual Disk Format 5.0.

The other kinds are lists of files, each of which may be such a list again.
"""

from struct import Struct

from .header import Header, Read, require_magic, unpack

MAGIC = b"KDMV"
SECTOR = 512
#: capacity, desc_offset, desc_size; in sectors
_HEAD = Struct("<12xQ8xQQ")
#: Where qemu looks for the descriptor, and how much of it is read; in sectors.
_USUAL_DESCRIPTOR = 1
_DESCRIPTOR_SIZE = 20

#: In lower case. qemu looks for it anywhere in the descriptor.
_PARENT = b"parentfilenamehint"


def parse(read: Read) -> Header:
    """Check that the image stands alone. Raises ValueError."""
    require_magic(read, 0, MAGIC, "single-file vmdk")
    capacity, offset, size = unpack(_HEAD, read, 0)
    if not capacity:
        raise ValueError("the data is in other files")
    if size > _DESCRIPTOR_SIZE or offset > 2**32:
        raise ValueError("the descriptor is larger than it may be")
    for place in {_USUAL_DESCRIPTOR, offset}:
        if _PARENT in read(place * SECTOR, _DESCRIPTOR_SIZE * SECTOR).lower():
            raise ValueError("the image needs a parent")
    return Header()
