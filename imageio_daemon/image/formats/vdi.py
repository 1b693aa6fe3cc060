# SPDX-License-Identifier: Apache-2.0
"""VDI of VirtualBox. Source: the struct in its sources, as the format's descriptions on the web repeat it."""

from struct import Struct

from .header import Header, Read, require_magic, unpack

SIGNATURE = bytes.fromhex("7f10dabe")
SIGNATURE_OFFSET = 64
#: image_type, uuid_link, uuid_parent
_HEAD = Struct("<76xI344x16s16s")
_DYNAMIC, _FIXED = 1, 2


def parse(read: Read) -> Header:
    """Check that the image stands alone. Raises ValueError."""
    require_magic(read, SIGNATURE_OFFSET, SIGNATURE, "vdi")
    kind, link, parent = unpack(_HEAD, read, 0)
    if kind not in (_DYNAMIC, _FIXED) or any(link) or any(parent):
        raise ValueError("the image needs a parent")
    return Header()
