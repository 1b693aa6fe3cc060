# SPDX-License-Identifier: Apache-2.0
"""Read the headers of image formats, to find other files that have to be opened with the image."""

from collections.abc import Callable, Mapping

from . import qcow2, vdi, vhdx, vmdk, vpc
from .header import Header, Read

#: The function that reads the header of each format. `raw` has no header.
PARSERS: Mapping[str, Callable[[Read], Header]] = {
    "raw": lambda _: Header(),
    "qcow2": qcow2.parse,
    "vmdk": vmdk.parse,
    "vhdx": vhdx.parse,
    "vpc": vpc.parse,
    "vdi": vdi.parse,
}

#: The formats of image files. The format of a file is never probed, because a guest decides how a raw image begins.
FORMATS = tuple(PARSERS)
