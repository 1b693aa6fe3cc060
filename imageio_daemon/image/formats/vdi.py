# SPDX-License-Identifier: Apache-2.0
"""VDI, the format of VirtualBox. Source: the struct in its source code, as descriptions on the web repeat it."""

from struct import Struct

from ..magics import VDI, VDI_OFFSET
from .header import Header, Read, require_magic, unpack

#: image_type, uuid_link, uuid_parent
_HEAD = Struct("<76xI344x16s16s")
_DYNAMIC, _FIXED = 1, 2


def parse(read: Read) -> Header:
    """Check that the image stands alone. Raises ValueError."""
    require_magic(read, VDI_OFFSET, VDI, "vdi")
    kind, link, parent = unpack(_HEAD, read, 0)
    if kind not in (_DYNAMIC, _FIXED) or any(link) or any(parent):
        raise ValueError("the image needs a parent")
    return Header()
