# SPDX-License-Identifier: Apache-2.0
"""Local images: sources of uploads and targets of downloads. The kinds named here are imported at their first use."""

from typing import TYPE_CHECKING

from ..lazily import imported_at_use

if TYPE_CHECKING:
    from .compressed import Decompressed, count, zstd
    from .compressing import CompressedFile
    from .nbd_export import NbdSource, NbdTarget
    from .qcow2 import CompressedQcow2, Increment, UpdatedQcow2
    from .qemu import QemuSource, QemuTarget
    from .rbd import RbdSource, RbdTarget
    from .sizes import ZSTD_HEADER, told_size, zstd_head
    from .spool import Spool, SpooledSource
else:
    __getattr__ = imported_at_use(
        __name__,
        {
            "CompressedFile": ".compressing",
            "CompressedQcow2": ".qcow2",
            "Decompressed": ".compressed",
            "Increment": ".qcow2",
            "NbdSource": ".nbd_export",
            "NbdTarget": ".nbd_export",
            "QemuSource": ".qemu",
            "QemuTarget": ".qemu",
            "RbdSource": ".rbd",
            "RbdTarget": ".rbd",
            "UpdatedQcow2": ".qcow2",
            "Spool": ".spool",
            "SpooledSource": ".spool",
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
    "NbdSource",
    "NbdTarget",
    "QemuSource",
    "QemuTarget",
    "RbdSource",
    "RbdTarget",
    "Spool",
    "SpooledSource",
    "UpdatedQcow2",
    "count",
    "told_size",
    "zstd",
    "zstd_head",
]
