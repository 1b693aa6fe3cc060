# SPDX-License-Identifier: Apache-2.0
"""VHDX. Source: Microsoft's [MS-VHDX], sections 2.2.3 (region table) and 2.6 (metadata)."""

from struct import Struct
from uuid import UUID

from ..magics import VHDX
from .header import Header, Read, read_exactly, require_magic, unpack

#: The offsets of two copies, either of which may be the valid one after a crash. No program follows a copy without its
#: signature. The others have to be in order.
REGION_TABLES = (192 * 1024, 256 * 1024)
_SIGNATURE = b"regi"
_TABLE = Struct("<4s4xI4x")
_REGION = Struct("<16sQII")
_METADATA_TABLE = Struct("<8s2xH20x")
_ITEM = Struct("<16sIII4x")
_PARAMETERS = Struct("<II")

_METADATA_REGION = UUID("8b7ca206-4790-4b9a-b8fe-575f050f886e").bytes_le
_FILE_PARAMETERS = UUID("caa16737-fa36-4d43-b3b6-33f0aa44e76b").bytes_le
_HAS_PARENT = 2
#: The limit of the format, for both kinds of tables.
MAX_ENTRIES = 2047


def parse(read: Read) -> Header:
    """Check that the image stands alone. Raises ValueError."""
    require_magic(read, 0, VHDX, "vhdx")
    tables = [table for table in REGION_TABLES if read(table, len(_SIGNATURE)) == _SIGNATURE]
    if not tables:
        raise ValueError("a table of the header is invalid")
    for table in tables:
        metadata = _find(read, table, _SIGNATURE, _TABLE, _REGION, _METADATA_REGION)
        parameters = _find(read, metadata, b"metadata", _METADATA_TABLE, _ITEM, _FILE_PARAMETERS)
        _, flags = unpack(_PARAMETERS, read, metadata + parameters)
        if flags & _HAS_PARENT:
            raise ValueError("the image needs a parent")
    return Header()


def _find(read: Read, offset: int, magic: bytes, head: Struct, entry: Struct, wanted: bytes) -> int:
    """Return the offset that a table has for a GUID. Raises ValueError."""
    found_magic, count = unpack(head, read, offset)
    if found_magic != magic or count > MAX_ENTRIES:
        raise ValueError("a table of the header is invalid")
    for guid, place, *_ in entry.iter_unpack(read_exactly(read, offset + head.size, count * entry.size)):
        if guid == wanted:
            return int(place)
    raise ValueError("the header lacks a part")
