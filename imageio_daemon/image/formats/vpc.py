# SPDX-License-Identifier: Apache-2.0
"""VHD, which qemu calls vpc. Source: Microsoft's Virtual Hard Disk Image Format Specification 1.0."""

from struct import Struct

from ..magics import VPC
from .header import Header, Read, unpack

_TYPE = Struct(">60xI")
_DYNAMIC = 3


def parse(read: Read) -> Header:
    """Check that the image stands alone. Raises ValueError.

    A fixed image has its header at the end of the file, and cannot name another file. Its first bytes are the guest's.
    """
    if read(0, len(VPC)) == VPC:
        (kind,) = unpack(_TYPE, read, 0)
        if kind != _DYNAMIC:
            raise ValueError(f"the image has type {kind}, only dynamic and fixed ones stand alone")
    return Header()
