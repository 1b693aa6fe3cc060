# SPDX-License-Identifier: Apache-2.0
"""Marks that show that a file is no raw image: those of other formats, of archives and of compressed files.

A valid raw image has none of them. It need not be a disk with partitions: it may also have a file system, LUKS, ISO
9660 or LVM, as a device may.
"""

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from ...image import magics
from ..errors import Usage

#: Bytes at the beginning and at the end of an image in which the marks are.
HEAD = 512
TAIL = 512

#: The options that may help, for each kind of source: a file, a pipe, a member that is read in place, decompressed
#: data, and anything else that is read in order or has one format only.
FILE = frozenset(("--format", "--decompress", "--member"))
PIPE = frozenset(("--decompress", "--member"))
MEMBER = frozenset(("--format",))
DECOMPRESSED = frozenset(("--member",))
WITHIN: frozenset[str] = frozenset()


class Mark(NamedTuple):
    """A mark that only files of one kind have. `remedy` is an option, or what else to do with such a file."""

    kind: str
    remedy: str
    is_shown: Callable[[bytes], object]


def _at(offset: int, *magics: bytes) -> Callable[[bytes], bool]:
    return lambda data: data.startswith(magics, offset)


def _is_version(version: int) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magics.QCOW2 + version.to_bytes(4, "big"))


def _is_tar(head: bytes) -> bool:
    """Return whether a head has the checksum of a tar header. Headers of the seventh edition have no magic (tar(5))."""
    told = head[148:156].strip(b" \0")
    if len(head) < HEAD or not head[0] or not re.fullmatch(rb"[0-7]+", told):
        return False
    return int(told, 8) == sum(head[:148]) + 8 * ord(" ") + sum(head[156:HEAD])


def _is_lzma(head: bytes) -> bool:
    """Return whether a head is that of an .lzma file, by the rules of xz(1), "FILE FORMAT", and the coder's first byte.

    In such a file, the size of the dictionary is 2^n or 2^n + 2^(n-1), and the decompressed size is unknown or less
    than 256 GiB.
    """
    if len(head) < 14:
        return False
    properties, dictionary, size, first = struct.unpack_from("<BIQB", head)
    usual = dictionary >= 1 << 12 and bin(dictionary).rstrip("0") in ("0b1", "0b11")
    return properties < 225 and usual and (size == 2**64 - 1 or size < 2**38) and first == 0


#: The beginning of a vmdk's descriptor: a comment, or what qemu takes in its place.
_DESCRIPTOR = re.compile(rb"\s*# *disk descriptorfile|(?:#[^\n]*\n|[ \t\r]*\n)*version=[123]\s", re.IGNORECASE)
_MARKUP = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|!doctype|html|envelope)", re.IGNORECASE)

_UNPACK = "unpack it with {} first"

HEADS = (
    Mark("qcow", "--format qcow", _is_version(1)),
    Mark("qcow2", "--format qcow2", _at(0, magics.QCOW2)),
    Mark("vmdk", "--format vmdk", _at(0, magics.VMDK, b"COWD")),
    Mark("vmdk", "--format vmdk", _DESCRIPTOR.match),
    Mark("vhdx", "--format vhdx", _at(0, magics.VHDX)),
    Mark("vpc", "--format vpc", _at(0, magics.VPC)),
    Mark("vdi", "--format vdi", _at(magics.VDI_OFFSET, magics.VDI)),
    Mark("qed", "--format qed", _at(0, b"QED\0")),
    Mark("parallels", "--format parallels", _at(0, b"WithoutFreeSpace", b"WithouFreSpacExt")),
    Mark("bochs", "--format bochs", _at(0, b"Bochs Virtual HD Image")),
    Mark("cloop", "--format cloop", _at(0, b"#!/bin/sh\n#V2.0 Format\n")),
    Mark("gzip", "--decompress gz", _at(0, b"\x1f\x8b\x08")),
    Mark("xz", "--decompress xz", _at(0, b"\xfd7zXZ\0")),
    Mark("zstd", "--decompress zstd", _at(0, magics.ZSTD)),
    # Also skippable frames: pzstd writes one before each other frame (RFC 8878, 3.1.2).
    Mark("zstd", "--decompress zstd", _at(0, *(bytes((number, 0x2A, 0x4D, 0x18)) for number in range(0x50, 0x60)))),
    Mark("bzip2", "--decompress bz2", _at(4, b"1AY&SY")),
    Mark("tar", "--member NAME", _at(257, b"ustar")),
    Mark("tar", "--member NAME", _is_tar),
    Mark("zip", _UNPACK.format("unzip"), _at(0, b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")),
    Mark("7z", _UNPACK.format("7z"), _at(0, b"7z\xbc\xaf\x27\x1c")),
    Mark("rar", _UNPACK.format("unrar"), _at(0, b"Rar!\x1a\x07")),
    Mark("cab", _UNPACK.format("cabextract"), _at(0, b"MSCF\0\0\0\0")),
    Mark("cpio", _UNPACK.format("cpio"), _at(0, b"070701", b"070702", b"070707")),
    Mark("ar", _UNPACK.format("ar"), _at(0, b"!<arch>\n")),
    Mark("rpm", _UNPACK.format("rpm2cpio"), _at(0, b"\xed\xab\xee\xdb")),
    Mark("xar", _UNPACK.format("xar"), _at(0, b"xar!")),
    Mark("lz4", _UNPACK.format("lz4"), _at(0, b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18")),
    Mark("lzip", _UNPACK.format("lzip"), _at(0, b"LZIP\x01")),
    Mark("lrzip", _UNPACK.format("lrzip"), _at(0, b"LRZI\0")),
    Mark("lzop", _UNPACK.format("lzop"), _at(0, b"\x89LZO\0\r\n\x1a\n")),
    Mark("lzma", _UNPACK.format("xz"), _is_lzma),
    Mark("compress", _UNPACK.format("gzip"), _at(0, b"\x1f\x9d")),
    Mark("snappy", _UNPACK.format("snzip"), _at(0, b"\xff\x06\0\0sNaPpY")),
    Mark("vma", "extract the disk with vma first", _at(0, b"VMA\0")),
    Mark("Android sparse", "convert it with simg2img first", _at(0, b"\x3a\xff\x26\xed")),
    Mark("wim", "apply it to a disk with wimapply first", _at(0, b"MSWIM\0\0\0")),
    Mark("ewf", "export it with ewfexport first", _at(0, b"EVF\x09\r\n\xff\0", b"EVF2\r\n\x81\0")),
    Mark("chd", "extract it with chdman first", _at(0, b"MComprHD")),
    Mark("partclone", "restore it with partclone first", _at(0, b"partclone-image")),
    Mark("partimage", "restore it with partimage first", _at(0, b"PaRtImAgE-VoLuMe")),
    Mark("ntfsclone", "restore it with ntfsclone first", _at(0, b"\0ntfsclone-image")),
    Mark("an export of rbd", "import it with rbd first", _at(0, b"rbd diff v", b"rbd image v")),
    Mark("a stream of btrfs", "receive it with btrfs first", _at(0, b"btrfs-stream\0")),
    Mark(
        "a stream of zfs", "receive it with zfs first", _at(8, b"\xac\xcb\xba\xf5\2\0\0\0", b"\0\0\0\2\xf5\xba\xcb\xac")
    ),
    Mark("a saved guest", "restore it with virsh first", _at(0, b"LibvirtQemudSave", b"LibvirtQemudPart", b"QEVM")),
    Mark("XML or HTML", "name the image that belongs to it", _MARKUP.match),
)
TAILS = (
    # A fixed vpc is raw up to its footer, which had 511 bytes before 2004 ("Hard Disk Footer Format" of its spec).
    Mark("vpc", "--format vpc", lambda tail: magics.VPC in (tail[-512:-504], tail[-511:-503])),
    Mark("dmg", "--format dmg", lambda tail: tail[-512:-508] == b"koly"),
)


def check_raw(name: str, place: frozenset[str], head: bytes, tail: bytes = b"", *, raw: str = "--format raw") -> None:
    """Raise Usage if an image that should be raw looks like something else. A guest can write any header to a disk.

    `place` has the options that may help. `head` and `tail` are the image's first HEAD and last TAIL bytes. `raw` are
    the options that take the bytes as they are.
    """
    shown = [*(mark for mark in HEADS if mark.is_shown(head)), *(mark for mark in TAILS if mark.is_shown(tail))]
    if shown:
        raise Usage(
            f"{name} looks like {shown[0].kind}: {_remedy(shown[0], place)}, or say {raw} for its bytes as they are"
        )


def _remedy(mark: Mark, place: frozenset[str]) -> str:
    if not mark.remedy.startswith("--"):
        return mark.remedy
    if mark.remedy.split()[0] in place:
        return f"say {mark.remedy}"
    return f"put it into a file of its own first, and say {mark.remedy}"
