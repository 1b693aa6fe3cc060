# SPDX-License-Identifier: Apache-2.0
"""Images that qemu-nbd reads and writes: images in formats other than raw, and others that qemu can open."""

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from ...image.formats import PARSERS
from ...image.ranges import RangeSet
from ..errors import LocalError
from .archive import Member
from .image_source import ImageSource
from .image_target import PartImage
from .in_use import locked_file
from .layers import SECTOR, are_all, refuse_cut, whole_sectors
from .qemu_img import arguments_for, run_qemu_img, tells_changes
from .qemu_nbd import IN_USE, PrivateQemuNbd
from .source import Source, changed, identity, open_image

log = logging.getLogger(__name__)

#: Formats whose images can be opened again after a flush, even if their qemu-nbd is killed later.
CONTINUED = ("qcow2",)
#: Seconds that the qemu-nbd of a killed download has to end, and seconds between two checks of that.
LEFT_TIMEOUT = 10.0
LEFT_POLL = 0.1
#: Options that give a new image exactly the wanted size. Without them, a vpc has whole cylinders.
SIZED: Mapping[str, tuple[str, ...]] = {"vpc": ("-o", "force_size=on")}


class QemuSource(ImageSource[PrivateQemuNbd]):
    """A source in a format other than raw. `name` is for messages, by default the path.

    `bitmap` is the name of a dirty bitmap that is served, too.
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
    ) -> None:
        shown = str(path) if name is None else name
        self._shared = shared
        self._locks = contextlib.ExitStack()
        arguments = arguments_for(path, format_name, member, shared=shared)
        super().__init__(PrivateQemuNbd(shown, arguments, bitmap=bitmap))
        try:
            self._files = {file: identity(file) for file in self._image.files()}
            # While qemu wrote to a vmdk, qemu-img check found references after its end in 628 of 2037 runs.
            if not shared:
                refuse_cut([*self._files], shown, format_name, member)
                for file in self._files:
                    self._locks.enter_context(locked_file(file.readlink(), file, writes=False))
            is_known = format_name in PARSERS and are_all(self._files, member.offset if member else 0)
        except BaseException:
            self.close()
            raise
        if is_known and None not in self._files.values():
            self.identity = {
                "format": format_name,
                "member": list(member) if member else None,
                "files": list(self._files.values()),
            }

    def check(self) -> None:
        """Raise LocalError if size or mtime of a file of the backing chain has changed."""
        for file, opened in self._files.items():
            if not self._shared and self._image.identity(file) != opened:
                raise changed(file.readlink())

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


class PresentSource(ImageSource[PrivateQemuNbd]):
    """The present content of a target, for comparisons while the target is written."""

    def close(self) -> None:
        """Do nothing: the target ends qemu-nbd."""


class QemuTarget(PartImage[PrivateQemuNbd]):
    """A new image in a format other than raw, called NAME.part until it is complete. Methods raise LocalError."""

    options: tuple[str, ...] = ()
    compress = False

    def __init__(self, path: Path, format_name: str, *, continues: bool = False) -> None:
        super().__init__(path, continues=continues and format_name in CONTINUED)
        self._format = format_name

    def resume(self, size: int) -> Source | None:
        """Serve the image of an earlier download, if there is one that qemu can open, and it has this size."""
        if not self._part.is_earlier:
            return None
        deadline = time.monotonic() + LEFT_TIMEOUT
        while self._image is None:
            try:
                self._image = self._serve()
            except LocalError as e:
                if IN_USE not in str(e) or time.monotonic() > deadline:
                    log.warning("%s", e)
                    return None
                time.sleep(LEFT_POLL)
        if self._image.size != whole_sectors(size):
            return None
        return PresentSource(self._image)

    def start(self, size: int) -> None:
        """Create the image, and serve it by qemu-nbd. Log its size if the format cannot have the wanted size."""
        self._begin_anew()
        self._tell(size, self._create(size).size)

    def _create(self, size: int) -> PrivateQemuNbd:
        options = (*SIZED.get(self._format, ()), *self.options)
        run_qemu_img("create", "-q", "-f", self._format, *options, "--", str(self._part.path.absolute()), str(size))
        self._image = self._serve()
        return self._image

    def _serve(self) -> PrivateQemuNbd:
        image = arguments_for(self._part.path, self._format, compress=self.compress)
        return PrivateQemuNbd(str(self._part.path), image, writable=True)

    def _tell(self, size: int, made: int) -> None:
        if made != size:
            text = "%s gets %d bytes, and the image has %d: the format %s has whole sectors of %d bytes"
            log.warning(text, self._part.final, made, size, self._format, SECTOR)

    def keep(self) -> bool:
        """End qemu-nbd, which flushes, and sync the file. Return whether qemu-nbd has ended well."""
        return super().keep() and (self._image is None or self._image.ended_well)
