# SPDX-License-Identifier: Apache-2.0
"""What the names of images tell. A format is never guessed from content."""

import os
from typing import NamedTuple

from ...urls.nbd import is_nbd
from ...urls.rbd import is_rbd

#: Formats that qemu reads, by the suffix of a name.
FORMATS = {".qcow2": "qcow2", ".vmdk": "vmdk", ".vhdx": "vhdx", ".vhd": "vpc", ".vpc": "vpc", ".vdi": "vdi"}

#: Compressions by the suffix of a name. They are called as in --decompress.
COMPRESSIONS = {".gz": "gz", ".xz": "xz", ".zst": "zstd", ".bz2": "bz2"}

#: Suffixes of archives, which are all tar, and short suffixes of compressed archives.
ARCHIVES = (".tar", ".ova")
SHORT = {".tgz": (".tar", "gz"), ".txz": (".tar", "xz"), ".tzst": (".tar", "zstd"), ".tbz2": (".tar", "bz2")}


class Named(NamedTuple):
    """What the name of an image tells: its compression, if any; whether it is a tar archive; its format, if not raw."""

    compression: str | None
    archive: bool
    format: str | None


def named(name: str) -> Named:
    """Return what a name tells by its suffixes, as in disk.qcow2, disk.raw.zst and disks.tar.gz."""
    stem, suffix = os.path.splitext(name.lower())
    inner, compression = SHORT.get(suffix) or (suffix, None)
    if suffix in COMPRESSIONS:
        inner, compression = os.path.splitext(stem)[1], COMPRESSIONS[suffix]
    return Named(compression, inner in ARCHIVES, FORMATS.get(inner))


def on_nbd(image: object) -> str | None:
    """Return the URI of an image if it is an export of an NBD server."""
    return image if isinstance(image, str) and "://" in image and is_nbd(image) else None


def is_elsewhere(image: object) -> bool:
    """Return whether an image has an address, and is no file or device of this host."""
    return bool(on_ceph(image) or on_nbd(image))


def on_ceph(image: object) -> str | None:
    """Return the address of an image if it is on Ceph. A file with such a name is named with ./ before it."""
    return image if isinstance(image, str) and is_rbd(image) else None
