# SPDX-License-Identifier: Apache-2.0
"""VMDK: only images in one file. Source: VMware's Virtual Disk Format 5.0.

Other kinds of VMDK are lists of files, and each of the files may be such a list, too.
"""

from struct import Struct

from ..magics import VMDK
from .header import Header, Read, require_magic, unpack

SECTOR = 512
#: capacity, desc_offset, desc_size; in sectors
_HEAD = Struct("<12xQ8xQQ")
#: The place where qemu always looks for the name of a parent, and the length that it reads there, in sectors.
_USUAL_DESCRIPTOR = 1
_LOOKED_AT = 20
#: The longest descriptor that is read, in sectors: 1 MiB, as in qemu.
MAX_DESCRIPTOR = 2048

#: The key of the parent's name, in lower case. qemu looks for it anywhere in the descriptor.
_PARENT = b"parentfilenamehint"


def parse(read: Read) -> Header:
    """Check that the image stands alone. Raises ValueError.

    This searches the whole descriptor. If qemu does not see the name of a parent, it reads zeros in its place.
    """
    require_magic(read, 0, VMDK, "single-file vmdk")
    capacity, offset, size = unpack(_HEAD, read, 0)
    if not capacity:
        raise ValueError("the data is in other files")
    if size > MAX_DESCRIPTOR or offset > 2**32:
        raise ValueError(f"the descriptor has {size} sectors, and may have {MAX_DESCRIPTOR}, or is far away")
    for place, length in ((_USUAL_DESCRIPTOR, _LOOKED_AT), (offset, max(size, _LOOKED_AT))):
        if _PARENT in read(place * SECTOR, length * SECTOR).lower():
            raise ValueError("the image needs a parent")
    return Header()
