# SPDX-License-Identifier: Apache-2.0
"""qcow2, versions 2 and 3. Source: qemu's docs/interop/qcow2.rst."""

import re
from collections.abc import Iterator
from struct import Struct

from .header import Backing, Header, Read, read_exactly, require_magic, unpack
from .magics import QCOW2

#: version, backing_file_offset, backing_file_size, cluster_bits, size, crypt_method
_HEAD = Struct(">4xIQIIQI")
#: incompatible_features, compatible_features, autoclear_features, refcount_order, header_length
_HEAD_V3 = Struct(">QQQII")
_HEAD_V3_OFFSET = 72
_EXTENSION = Struct(">II")

#: The known bits of incompatible_features: dirty, corrupt, external data file, compression type, extended L2 entries.
_KNOWN_FEATURES = 0x1F
_CORRUPT_BIT = 1 << 1
_DATA_FILE_BIT = 1 << 2

_END = 0
_BACKING_FORMAT = 0xE2792ACA
_DATA_FILE = 0x44415441

MAX_NAME = 1023
#: Characters that no real name has. Other programs take NUL as the end of a name, and some end lines of a log.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
#: The furthest end of header extensions, in bytes. They are in the first cluster, and known ones take less than 1 KiB.
MAX_HEADER = 64 * 1024


def parse(read: Read) -> Header:
    """Return the files that the header names, and what the image can zero. Raises ValueError."""
    require_magic(read, 0, QCOW2, "qcow2")
    version, name_offset, name_size, cluster_bits, _, encryption = unpack(_HEAD, read, 0)
    features, length = 0, _HEAD_V3_OFFSET
    if version == 3:
        features, _, _, _, length = unpack(_HEAD_V3, read, _HEAD_V3_OFFSET)
    elif version != 2:
        raise ValueError(f"unknown version {version}")
    if not 9 <= cluster_bits <= 21:
        raise ValueError(f"invalid cluster size 2^{cluster_bits}")
    if encryption:
        raise ValueError("the image is encrypted")
    if features & ~_KNOWN_FEATURES:
        raise ValueError(f"unknown features {features:#x}")
    end = name_offset or 1 << cluster_bits
    if not _HEAD_V3_OFFSET <= length <= end <= 1 << cluster_bits:
        raise ValueError("the header is larger than it may be")
    extensions = dict(_extensions(read, length, min(end, MAX_HEADER)))
    backing = None
    if name_offset:
        name = _name(read_exactly(read, name_offset, _name_size(name_size)))
        backing = Backing(name, _name(extensions.get(_BACKING_FORMAT, b"")))
    data_file = None
    if features & _DATA_FILE_BIT:
        data_file = _name(extensions.get(_DATA_FILE, b""))
        if not data_file:
            raise ValueError("the data is in another file, which is not named")
    return Header(backing, data_file, _zero_unit(version, 1 << cluster_bits, data_file))


def disk_size(read: Read) -> int:
    """Return the size of the disk, in bytes. Raises ValueError if there is no qcow2 header."""
    require_magic(read, 0, QCOW2, "qcow2")
    _, _, _, _, size, _ = unpack(_HEAD, read, 0)
    return int(size)


def is_marked_corrupt(read: Read) -> bool:
    """Return whether an image must be repaired before it is written. Raises ValueError if there is no qcow2 header."""
    require_magic(read, 0, QCOW2, "qcow2")
    version, *_ = unpack(_HEAD, read, 0)
    return version >= 3 and bool(unpack(_HEAD_V3, read, _HEAD_V3_OFFSET)[0] & _CORRUPT_BIT)


def _zero_unit(version: int, cluster: int, data_file: str | None) -> int | None:
    """Return the bytes of a cluster if the table of clusters can mark it as zeros.

    Version 2 has no such mark. If the data is in another file, that may have to be zeroed, too. Its file system may be
    slow, or punch a hole first and then find out that it cannot allocate.
    """
    return cluster if version >= 3 and data_file is None else None


def _extensions(read: Read, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of the extensions that have a name. Raises ValueError."""
    seen = set()
    start, header = offset, read(offset, end - offset)  # one read, as there may be thousands of empty extensions

    def inside(place: int, size: int) -> bytes:
        return header[place - start : place - start + size]

    while offset + _EXTENSION.size <= end:
        kind, length = unpack(_EXTENSION, inside, offset)
        offset += _EXTENSION.size
        if kind == _END:
            return
        if length > end - offset:
            raise ValueError("a header extension is larger than the header")
        if kind in (_BACKING_FORMAT, _DATA_FILE):
            if kind in seen or length > MAX_NAME:
                raise ValueError("a name in the header is there twice or too long")
            seen.add(kind)
            yield kind, read_exactly(inside, offset, length)
        offset += -(-length // 8) * 8
    if offset >= MAX_HEADER:
        raise ValueError("the header extensions do not end")


def _name_size(size: int) -> int:
    if not 0 < size <= MAX_NAME:
        raise ValueError(f"the name of the backing file has {size} bytes")
    return size


def _name(data: bytes) -> str:
    """Return a name. Bytes that are not UTF-8 become surrogates, as in os.fsdecode(). Raises ValueError."""
    name = data.decode(errors="surrogateescape")
    if _CONTROL.search(name):
        raise ValueError("a name in the header has control characters")
    return name
