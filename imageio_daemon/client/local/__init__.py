# SPDX-License-Identifier: Apache-2.0
"""Local images: what is uploaded, and what downloads make. Here are the kinds that are imported when one is used."""

from typing import TYPE_CHECKING

from ..lazily import imported_at_use

if TYPE_CHECKING:
    from .compressed import Decompressed, count, zstd
    from .compressing import CompressedFile
    from .qcow2 import CompressedQcow2, Increment
    from .qemu import QemuSource, QemuTarget
    from .rbd import RbdSource, RbdTarget
    from .sizes import ZSTD_HEADER, told_size, zstd_head
else:
    __getattr__ = imported_at_use(
        __name__,
        {
            "CompressedFile": ".compressing",
            "CompressedQcow2": ".qcow2",
            "Decompressed": ".compressed",
            "Increment": ".qcow2",
            "QemuSource": ".qemu",
            "QemuTarget": ".qemu",
            "RbdSource": ".rbd",
            "RbdTarget": ".rbd",
            "ZSTD_HEADER": ".sizes",
            "count": ".compressed",
            "told_size": ".sizes",
            "zstd": ".compressed",
            "zstd_head": ".sizes",
        },
    )

__all__ = [
    "ZSTD_HEADER",
    "CompressedFile",
    "CompressedQcow2",
    "Decompressed",
    "Increment",
    "QemuSource",
    "QemuTarget",
    "RbdSource",
    "RbdTarget",
    "count",
    "told_size",
    "zstd",
    "zstd_head",
]
