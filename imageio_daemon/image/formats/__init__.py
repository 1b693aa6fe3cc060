# SPDX-License-Identifier: Apache-2.0
"""Headers of image formats, read as far as they name other files that have to be opened with the image."""

from collections.abc import Callable, Mapping

from . import qcow2, vdi, vhdx, vmdk, vpc
from .header import Header, Read

#: How the header of each format is read. `raw` has none.
PARSERS: Mapping[str, Callable[[Read], Header]] = {
    "raw": lambda _: Header(),
    "qcow2": qcow2.parse,
    "vmdk": vmdk.parse,
    "vhdx": vhdx.parse,
    "vpc": vpc.parse,
    "vdi": vdi.parse,
}

#: The formats of image files. None is ever probed for, because a guest decides how a raw image begins.
FORMATS = tuple(PARSERS)
