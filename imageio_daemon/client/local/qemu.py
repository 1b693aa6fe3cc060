# SPDX-License-Identifier: Apache-2.0
"""Images that qemu-nbd reads and writes: images in formats other than raw, and others that qemu can open."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ...image.ranges import RangeSet
from .archive import Member
from .image_source import FormatSource
from .in_use import locked_file
from .layers import refuse_cut
from .new_image import NewImage
from .qemu_img import arguments_for, run_qemu_img, tells_changes
from .qemu_nbd import PrivateQemuNbd
from .source import open_image

#: Options that give a new image exactly the wanted size. Without them, a vpc has whole cylinders.
SIZED: Mapping[str, tuple[str, ...]] = {"vpc": ("-o", "force_size=on")}


class QemuSource(FormatSource[PrivateQemuNbd]):
    """A source that qemu-nbd serves. `name` is for messages, by default the path.

    `bitmap` is the name of a dirty bitmap that is served, too. `why` tells in messages why it has to be qemu-nbd.
    """

    def __init__(
        self,
        path: Path,
        format_name: str,
        member: Member | None = None,
        *,
        shared: bool = False,
        name: str | None = None,
        bitmap: str | None = None,
        why: str = "",
    ) -> None:
        shown = str(path) if name is None else name
        self._locks = contextlib.ExitStack()
        arguments = arguments_for(path, format_name, member, shared=shared)
        image = PrivateQemuNbd(shown, arguments, bitmap=bitmap, why=why)
        with contextlib.ExitStack() as opened:
            opened.callback(image.close)
            opened.push(self._locks)
            super().__init__(image, format_name, member, shared=shared)
            # While qemu wrote to a vmdk, qemu-img check found references after its end in 628 of 2037 runs.
            if not shared:
                refuse_cut([*self._files], shown, format_name, member)
                for file in self._files:
                    self._locks.enter_context(locked_file(file.readlink(), file, writes=False))
            opened.pop_all()

    def close(self) -> None:
        """End qemu-nbd, and unlock the files."""
        with self._locks:
            super().close()


class MarkedQemuSource(QemuSource):
    """A source that may have a dirty bitmap of the name `bitmap`."""

    def __init__(
        self, path: Path, format_name: str, member: Member | None, *, shared: bool, bitmap: str | None
    ) -> None:
        os.close(open_image(path))  # so that a missing file is told as for other images
        known = bitmap is not None and tells_changes(path, format_name, member, bitmap)
        self._bitmap = bitmap if known else None
        super().__init__(path, format_name, member, shared=shared, bitmap=self._bitmap)

    def changed(self) -> RangeSet | None:
        """Return the ranges that the bitmap marks, or larger ones. Return None if it cannot be used."""
        if self._bitmap is None:
            return None
        return self._image.changed(self._bitmap)


class QemuTarget(NewImage[PrivateQemuNbd]):
    """A new image that qemu-nbd writes."""

    options: tuple[str, ...] = ()
    compress = False

    def _make(self, path: Path, size: int) -> None:
        options = (*SIZED.get(self._format, ()), *self.options)
        run_qemu_img("create", "-q", "-f", self._format, *options, "--", str(path.absolute()), str(size))

    def _open(self, path: Path) -> PrivateQemuNbd:
        return PrivateQemuNbd(str(path), arguments_for(path, self._format, compress=self.compress), writable=True)
