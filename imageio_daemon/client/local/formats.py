# SPDX-License-Identifier: Apache-2.0
"""What names tell of images, and what contents contradict. A format is never guessed from content."""

import os
from typing import NamedTuple

from ...urls.rbd import is_rbd
from ..errors import Usage

#: Formats that qemu reads, by the suffix of a name.
FORMATS = {".qcow2": "qcow2", ".vmdk": "vmdk", ".vhdx": "vhdx", ".vhd": "vpc", ".vpc": "vpc", ".vdi": "vdi"}

#: What compresses, by the suffix of a name. The names are those of --decompress.
COMPRESSIONS = {".gz": "gz", ".xz": "xz", ".zst": "zstd", ".bz2": "bz2"}

#: Archives, which are all tar, and short suffixes of compressed ones.
ARCHIVES = (".tar", ".ova")
SHORT = {".tgz": (".tar", "gz"), ".txz": (".tar", "xz"), ".tzst": (".tar", "zstd"), ".tbz2": (".tar", "bz2")}

#: Bytes at the beginning and at the end of an image in which another format than raw shows itself.
HEAD = 512
TAIL = 512


class Mark(NamedTuple):
    """What only files of a kind have at an offset. remedy: what the user does with such a file."""

    kind: str
    remedy: str
    offset: int
    magic: bytes


MARKS = (
    Mark("qcow2", "say --format qcow2", 0, b"QFI\xfb"),
    Mark("vmdk", "say --format vmdk", 0, b"KDMV"),
    Mark("vmdk", "say --format vmdk", 0, b"# Disk DescriptorFile"),
    Mark("vhdx", "say --format vhdx", 0, b"vhdxfile"),
    Mark("vpc", "say --format vpc", 0, b"conectix"),
    Mark("vdi", "say --format vdi", 64, b"\x7f\x10\xda\xbe"),
    Mark("gzip", "say --decompress gz", 0, b"\x1f\x8b\x08"),
    Mark("xz", "say --decompress xz", 0, b"\xfd7zXZ\0"),
    Mark("zstd", "say --decompress zstd", 0, b"\x28\xb5\x2f\xfd"),
    Mark("zstd", "say --decompress zstd", 0, b"\x50\x2a\x4d\x18"),  # what pzstd begins with
    Mark("bzip2", "say --decompress bz2", 4, b"1AY&SY"),
    Mark("tar", "say --member NAME", 257, b"ustar"),
)
#: Images of vpc that have a fixed size are raw up to their footer.
FOOTER = Mark("vpc", "say --format vpc", 0, b"conectix")


class Named(NamedTuple):
    """What the name of an image says. compression: None: it is not compressed. archive: tar. format: None: raw."""

    compression: str | None
    archive: bool
    format: str | None


def named(name: str) -> Named:
    """Return what a name says by its suffixes, as in disk.qcow2, disk.raw.zst and disks.tar.gz."""
    stem, suffix = os.path.splitext(name.lower())
    inner, compression = SHORT.get(suffix) or (suffix, None)
    if suffix in COMPRESSIONS:
        inner, compression = os.path.splitext(stem)[1], COMPRESSIONS[suffix]
    return Named(compression, inner in ARCHIVES, FORMATS.get(inner))


def on_ceph(image: object) -> str | None:
    """Return the address if an image is one on Ceph; a file of such a name is ./rbd:…"""
    return image if isinstance(image, str) and is_rbd(image) else None


def check_raw(name: str, head: bytes, tail: bytes = b"") -> None:
    """Raise Usage if an image that is to be raw looks like something else. A guest can write any header to a disk.

    head, tail: its first HEAD and its last TAIL bytes.
    """
    found = next((mark for mark in MARKS if head.startswith(mark.magic, mark.offset)), None)
    if found is None and tail.startswith(FOOTER.magic):
        found = FOOTER
    if found:
        raise Usage(f"{name} looks like {found.kind}: {found.remedy}, or say --format raw for its bytes as they are")
