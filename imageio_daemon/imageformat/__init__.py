# SPDX-License-Identifier: Apache-2.0
"""Headers of image formats: only what tells which other files an image wants to be opened with it."""

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
