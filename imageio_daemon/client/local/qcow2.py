# SPDX-License-Identifier: Apache-2.0
"""New qcow2 images that are written in whole clusters: of changes, and compressed ones."""

import threading
from pathlib import Path

from ...units import KiB
from ..errors import LocalError
from .qemu import QemuTarget, run_qemu_img

#: Cluster size of new qcow2 images, in bytes, qemu's default.
CLUSTER = 64 * KiB


class Increment(QemuTarget):
    """A new qcow2 image with the changed extents, to be rebased on an older copy by `qemu-img rebase -u`.

    Whole clusters are written: qemu fills the rest of a newly allocated cluster with zeros, not with the older copy.
    """

    block = CLUSTER
    reads_zero = False
    options = ("-o", f"compat=1.1,cluster_size={CLUSTER}")

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise LocalError(f"{path} exists: what has changed goes to a new image, for qemu-img rebase -u")
        super().__init__(path, "qcow2")


class CompressedQcow2(QemuTarget):
    """A new qcow2 image with compressed clusters. Each is written once, whole: qemu cannot write to it again."""

    block = CLUSTER
    options = ("-o", f"compat=1.1,cluster_size={CLUSTER}")
    compress = True

    def __init__(self, path: Path) -> None:
        super().__init__(path, "qcow2")
        # Clusters that come in parts: the last one, and those in which a connection was lost. Written at the end.
        self._parts: dict[int, bytearray] = {}
        self._lock = threading.Lock()
        self._size = 0

    def start(self, size: int) -> None:
        """Create the image, of whole clusters until the end, and serve it by qemu-nbd."""
        self._size = size
        super().start(-(-size // CLUSTER) * CLUSTER)

    def write(self, offset: int, data: memoryview) -> None:
        """Write the whole clusters, and keep the rest."""
        end = offset + len(data)
        first = min(-(-offset // CLUSTER) * CLUSTER, end)
        last = max(end // CLUSTER * CLUSTER, first)
        self._keep(offset, data[: first - offset])
        if first < last:
            super().write(first, data[first - offset : last - offset])
        self._keep(last, data[last - offset :])

    def finish(self) -> None:
        """Write what came in parts, and finish the image."""
        for start, cluster in self._parts.items():
            super().write(start, memoryview(cluster))
        super().finish()

    def _closed(self) -> None:
        if self._size % CLUSTER:
            run_qemu_img(
                "resize", "-q", "--shrink", "-f", "qcow2", "--", str(self._part.path.absolute()), str(self._size)
            )

    def _keep(self, offset: int, data: memoryview) -> None:
        if data:
            with self._lock:
                start = offset // CLUSTER * CLUSTER
                part = self._parts.setdefault(start, bytearray(CLUSTER))
                part[offset - start : offset - start + len(data)] = data
