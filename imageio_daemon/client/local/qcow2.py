# SPDX-License-Identifier: Apache-2.0
"""qcow2 images: new ones in whole clusters, with only the changes or compressed, and existing ones to update.

Other new ones are a QemuTarget of qemu.py. choosing.py chooses.
"""

import contextlib
import errno
import os
import threading
from pathlib import Path

from ...units import KiB
from ..errors import LocalError
from .image_target import InPlace
from .layers import whole_sectors
from .qemu import PresentSource, QemuTarget
from .qemu_img import arguments_for, run_qemu_img
from .qemu_nbd import PrivateQemuNbd
from .source import Source

#: Cluster size of new qcow2 images, in bytes, qemu's default.
CLUSTER = 64 * KiB


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
        """Create the image, with a whole cluster at its end for now, and serve it by qemu-nbd."""
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


class UpdatedQcow2(InPlace[PrivateQemuNbd]):
    """An existing qcow2 image, in which what differs is written in place."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), PrivateQemuNbd(str(path), arguments_for(path, "qcow2"), writable=True))

    @staticmethod
    def check(path: Path, size: int) -> None:
        """Raise LocalError unless the image can be written and has this size.

        Changes nothing: qemu marks bitmaps as in use when it opens an image for writing.
        """
        if not os.access(path, os.W_OK):
            raise LocalError(f"can't write {path}: {os.strerror(errno.EACCES)}")
        with contextlib.closing(PrivateQemuNbd(str(path), arguments_for(path, "qcow2", shared=True))) as server:
            _require_size(str(path), server.size, size)

    def start(self, size: int) -> None:
        """Raise LocalError unless the image has this size."""
        _require_size(self._name, self._opened.size, size)

    def source(self) -> Source:
        """Return a source of the image's present content."""
        return PresentSource(self._opened)


def _require_size(name: str, has: int, size: int) -> None:
    if has != whole_sectors(size):
        raise LocalError(f"{name} is an image of {has} bytes, and the other one has {size}: qemu-img resize")
