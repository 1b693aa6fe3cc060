# SPDX-License-Identifier: Apache-2.0
"""New qcow2 images that qemu writes in whole clusters: with only the changes, or compressed."""

import threading
from pathlib import Path

from ..errors import LocalError
from .layers import whole_sectors
from .qcow2_image import CLUSTER
from .qemu import QemuTarget
from .qemu_img import run_qemu_img


class Increment(QemuTarget):
    """A new qcow2 image with the changed extents, to be rebased on an older copy by `qemu-img rebase -u`.

    Whole clusters are written, because qemu fills the rest of a new cluster with zeros, not with the older copy.
    """

    block = CLUSTER
    options = ("-o", f"compat=1.1,cluster_size={CLUSTER}")

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise LocalError(f"{path} exists: what has changed goes to a new image, for qemu-img rebase -u")
        super().__init__(path, "qcow2")

    @property
    def reads_zero(self) -> bool:
        """Return False: zeros must be written, to hide the data of the older copy."""
        return False


class CompressedQcow2(QemuTarget):
    """A new qcow2 image with compressed clusters. Each is written once, whole: qemu cannot write to it again."""

    block = CLUSTER
    options = ("-o", f"compat=1.1,cluster_size={CLUSTER}")
    compress = True

    def __init__(self, path: Path) -> None:
        super().__init__(path, "qcow2")
        # Clusters that come in parts: the last one, and those in which a connection was lost. They are written at the
        # end.
        self._parts: dict[int, bytearray] = {}
        self._lock = threading.Lock()
        self._size = 0

    def start(self, size: int) -> None:
        """Make the image, with a whole cluster at its end for now, and open it."""
        self._size = whole_sectors(size)
        self._create(-(-size // CLUSTER) * CLUSTER)
        self._tell(size, self._size)

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
        """Write the clusters that came in parts, and finish the image."""
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
