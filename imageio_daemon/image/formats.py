# SPDX-License-Identifier: Apache-2.0
"""Read the headers of image formats, to find other files that have to be opened with the image.

qcow2 has a module of its own. Images of the other formats have to stand alone. Sources: VMware's Virtual Disk Format
5.0; Microsoft's [MS-VHDX], sections 2.2.3 (region table) and 2.6 (metadata), and Virtual Hard Disk Image Format
Specification 1.0; for VDI the struct in the source code of VirtualBox, as descriptions on the web repeat it.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from uuid import UUID

from . import qcow2
from .header import Header, Read, read_exactly, require_magic, unpack
from .magics import VDI, VDI_OFFSET, VHDX, VMDK, VPC

_NEEDS_PARENT = "the image needs a parent"

# VMDK: only images in one file. Other kinds are lists of files, and each of the files may be such a list, too.

SECTOR = 512
#: capacity, desc_offset, desc_size; in sectors
_VMDK_HEAD = Struct("<12xQ8xQQ")
#: The place where qemu always looks for the name of a parent, and the length that it reads there, in sectors.
_USUAL_DESCRIPTOR = 1
_LOOKED_AT = 20
#: The longest descriptor that is read, in sectors: 1 MiB, as in qemu.
MAX_DESCRIPTOR = 2048
#: The key of the parent's name, in lower case. qemu looks for it anywhere in the descriptor.
_PARENT = b"parentfilenamehint"


def _vmdk(read: Read) -> Header:
    """Search the whole descriptor. If qemu does not see the name of a parent, it reads zeros in its place."""
    require_magic(read, 0, VMDK, "single-file vmdk")
    capacity, offset, size = unpack(_VMDK_HEAD, read, 0)
    if not capacity:
        raise ValueError("the data is in other files")
    if size > MAX_DESCRIPTOR or offset > 2**32:
        raise ValueError(f"the descriptor has {size} sectors, and may have {MAX_DESCRIPTOR}, or is far away")
    for place, length in ((_USUAL_DESCRIPTOR, _LOOKED_AT), (offset, max(size, _LOOKED_AT))):
        if _PARENT in read(place * SECTOR, length * SECTOR).lower():
            raise ValueError(_NEEDS_PARENT)
    return Header()


# VHDX

#: The offsets of two copies, either of which may be the valid one after a crash. No program follows a copy without its
#: signature. The others have to be in order.
REGION_TABLES = (192 * 1024, 256 * 1024)
_SIGNATURE = b"regi"
_TABLE = Struct("<4s4xI4x")
_REGION = Struct("<16sQII")
_METADATA_TABLE = Struct("<8s2xH20x")
_ITEM = Struct("<16sIII4x")
_PARAMETERS = Struct("<II")

METADATA_REGION = UUID("8b7ca206-4790-4b9a-b8fe-575f050f886e").bytes_le
_FILE_PARAMETERS = UUID("caa16737-fa36-4d43-b3b6-33f0aa44e76b").bytes_le
_HAS_PARENT = 2
#: The limit of the format, for both kinds of tables.
MAX_ENTRIES = 2047


def _vhdx(read: Read) -> Header:
    require_magic(read, 0, VHDX, "vhdx")
    tables = [table for table in REGION_TABLES if read(table, len(_SIGNATURE)) == _SIGNATURE]
    if not tables:
        raise ValueError("a table of the header is invalid")
    for table in tables:
        metadata = _find(read, table, _SIGNATURE, _TABLE, _REGION, METADATA_REGION)
        parameters = _find(read, metadata, b"metadata", _METADATA_TABLE, _ITEM, _FILE_PARAMETERS)
        _, flags = unpack(_PARAMETERS, read, metadata + parameters)
        if flags & _HAS_PARENT:
            raise ValueError(_NEEDS_PARENT)
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


# VHD, which qemu calls vpc

_TYPE = Struct(">60xI")
_VPC_DYNAMIC = 3


def _vpc(read: Read) -> Header:
    """A fixed image has its header at the end of the file, and cannot name another. Its first bytes are the guest's."""
    if read(0, len(VPC)) == VPC:
        (kind,) = unpack(_TYPE, read, 0)
        if kind != _VPC_DYNAMIC:
            raise ValueError(f"the image has type {kind}, only dynamic and fixed ones stand alone")
    return Header()


# VDI, the format of VirtualBox

#: image_type, uuid_link, uuid_parent
_VDI_HEAD = Struct("<76xI344x16s16s")
_VDI_TYPES = (1, 2)  # dynamic, fixed


def _vdi(read: Read) -> Header:
    require_magic(read, VDI_OFFSET, VDI, "vdi")
    kind, link, parent = unpack(_VDI_HEAD, read, 0)
    if kind not in _VDI_TYPES or any(link) or any(parent):
        raise ValueError(_NEEDS_PARENT)
    return Header()


#: The function that reads the header of each format, and raises ValueError. `raw` has no header.
PARSERS: Mapping[str, Callable[[Read], Header]] = {
    "raw": lambda _: Header(),
    "qcow2": qcow2.parse,
    "vmdk": _vmdk,
    "vhdx": _vhdx,
    "vpc": _vpc,
    "vdi": _vdi,
}

#: The formats of image files. The format of a file is never probed, because a guest decides how a raw image begins.
FORMATS = tuple(PARSERS)
