# SPDX-License-Identifier: Apache-2.0
"""The files that an image file needs: they are checked, and described in a block graph for qemu and in memory for C.

The header of an image may come from an attacker. So qemu does not follow it: the graph has the real path and the format
of every file, and says where there is no backing file. One gap remains, because qemu reads the header again. A program
that writes to the file, or renames directories on its path, between the two reads can change which files are opened.

All functions here block.
"""

import errno
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import BitmapInUse, Error, NotFound, StorageError, Unusable
from ..units import MAX_OFFSET
from . import lasting
from .formats import PARSERS

#: Most files below an image, for qemu-nbd and the engine. Long chains are slow; those of real virtual machines have
#: some dozen.
MAX_DEPTH: int = lib.IOU_QCOW2_MAX_LAYERS - 1

#: How an image is refused, before the reason.
NOT_SERVED = "The image cannot be served: "

#: How to give a backing file a format.
REBASE = "see qemu-img rebase -u -F"

#: qemu takes `name:` at the beginning for a protocol, as in nbd:…, json:… and file:….
_PROTOCOL = re.compile(r"[^/]*:")


class File(NamedTuple):
    """A file of a chain, by its real path. `backing` is the name in its header, also if it is not followed."""

    path: str
    format: str
    backing: str | None


@dataclass
class Chain:
    """The block graph for qemu. `node` is the image as a block device, for JSON. `direct` tells whether O_DIRECT works.

    `identity` and `lasting` are those of the image itself, as in BackendInfo. For `zero_unit`, see Header. `alone`
    tells that no other file has a part of what a guest reads. `files` are the files of the chain, top first.
    """

    node: dict[str, Any] = field(default_factory=dict)
    direct: bool = True
    identity: object = None
    lasting: str | None = None
    zero_unit: int | None = None
    alone: bool = False
    files: list[File] = field(default_factory=list)

    @property
    def is_native(self) -> bool:
        """Return whether all files have formats that C reads: qcow2 and raw."""
        return all(file.format in ("qcow2", "raw") for file in self.files)


class QemuImage(NamedTuple):
    """An image file and how to open it.

    With `backing_chain`, open the files below it, too; otherwise only the top layer is seen. The files that it names
    may be in the `allowed` directories. `bitmap` has what has changed. With `shared`, other programs may use the image
    at the same time: qemu locks none of the files.
    """

    path: str
    format: str
    backing_chain: bool
    allowed: Sequence[str]
    bitmap: str | None = None
    shared: bool = False


def inspect(image: QemuImage) -> Chain:
    """Read an image's header, and those of the files that it names.

    Raises Unusable if an image cannot be served by its header, StorageError with EPERM, before it is opened, for a file
    outside of the allowed directories, and other StorageErrors.
    """
    inspector = _Inspector(image)
    inspector.chain.node = inspector.node(image.path, image.format, backing_chain=image.backing_chain, depth=0)
    return inspector.chain


class _Inspector:
    def __init__(self, image: QemuImage) -> None:
        self._options: dict[str, Any] = {"locking": "off"} if image.shared else {}  # for each file
        self.chain = Chain()
        self._image = image.path
        self._allowed = [os.path.realpath(directory) for directory in image.allowed]
        self._seen: set[tuple[int, int]] = set()

    def node(self, path: str, image_format: str, *, backing_chain: bool, depth: int) -> dict[str, Any]:
        """Return the node of an image with the files below it."""
        if image_format not in PARSERS:
            raise self._unusable("a file of it has no known format", f"{path}: {image_format[:20]!r}")
        if depth > MAX_DEPTH:
            raise self._unusable(f"it has more than {MAX_DEPTH} files below it")
        real = os.path.realpath(path)
        with _Opened(real, self._image) as opened:
            self._see(opened)
            if depth == 0:
                self.chain.identity = opened.identity
                self.chain.lasting = opened.lasting
            try:
                header = PARSERS[image_format](opened.read)
            except ValueError as e:
                raise self._unusable(str(e), path) from None
            node: dict[str, Any] = {"driver": image_format, "file": opened.node | self._options}
            self.chain.direct &= opened.takes_direct()
            self.chain.files.append(File(real, image_format, header.backing.name if header.backing else None))
        if depth == 0:
            self.chain.zero_unit = header.zero_unit
            self.chain.alone = header.backing is None and header.data_file is None
        if header.data_file is not None:
            with _Opened(self._named(path, header.data_file), self._image) as data:
                self._see(data)
                node["data-file"] = data.node | self._options
                self.chain.direct &= data.takes_direct()
        if image_format != "raw":
            node["backing"] = None
        if header.backing is not None and backing_chain:
            if not header.backing.format:
                raise self._unusable("it does not tell the format of its backing file", f"{path}: {REBASE}")
            below = self._named(path, header.backing.name)
            node["backing"] = self.node(below, header.backing.format, backing_chain=True, depth=depth + 1)
        return node

    def _named(self, path: str, name: str) -> str:
        """Return the path of a file that a header names, relative to the directory of the image's own name."""
        if _PROTOCOL.match(name):
            raise self._unusable("it names something that is no path", f"{path}: {name[:100]!r}")
        found = os.path.realpath(os.path.join(os.path.dirname(path), name))
        if not any(os.path.commonpath([found, directory]) == directory for directory in self._allowed):
            why = f"({path} names {name!r}, which is not below [backend_nbd] allowed_paths)"
            raise StorageError(errno.EPERM, f"open {self._image}", "image header", why)
        # The name, not the real path: the next relative name starts in the directory of this name.
        return os.path.join(os.path.dirname(path), name)

    def _see(self, opened: "_Opened") -> None:
        if opened.identity in self._seen:
            raise self._unusable("it names a file twice", opened.path)
        self._seen.add(opened.identity)

    def _unusable(self, why: str, where: str = "") -> Unusable:
        """Return the error. `why` is for clients and the log; `where` has names, for the log only."""
        detail = f"({where}: {why})" if where else f"({why})"
        return Unusable(f"{NOT_SERVED}{why}", f"open {self._image}", "image header", detail)


class _Opened:
    """A file or block device, open for reading."""

    def __init__(self, path: str, image: str) -> None:
        self.path = os.path.realpath(path)
        what = f"open {image}"
        try:
            status = os.stat(self.path)
            self.is_block = stat.S_ISBLK(status.st_mode)
            # Opening a character device may have effects, and opening a pipe may block.
            if not self.is_block and not stat.S_ISREG(status.st_mode):
                raise StorageError(errno.ENOTBLK, what, "stat", f"({self.path} is no file or block device)")
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            raise StorageError(e.errno or errno.EIO, what, "open", f"({self.path})") from None
        self.identity = (status.st_rdev, 0) if self.is_block else (status.st_dev, status.st_ino)

    def __enter__(self) -> "_Opened":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def node(self) -> dict[str, Any]:
        return {"driver": "host_device" if self.is_block else "file", "filename": self.path}

    def read(self, offset: int, length: int) -> bytes:
        if offset > MAX_OFFSET - length:
            return b""  # a header may have any offset, but no file is that long
        try:
            return os.pread(self._fd, length, offset)
        except OSError as e:
            raise StorageError(e.errno or errno.EIO, f"open {self.path}", "pread") from None

    @property
    def lasting(self) -> str | None:
        device, inode = self.identity
        if self.is_block:
            return lasting.of_device(device, os.lseek(self._fd, 0, os.SEEK_END))
        birth = ffi.new("iou_birth *")
        lib.iou_file_birth(self._fd, birth)
        return lasting.of_file(device, inode, birth)

    def takes_direct(self) -> bool:
        """Return whether the file system takes O_DIRECT."""
        try:
            os.close(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECT))
        except OSError:
            return False
        return True


class ChainMemory:
    """The memory of a description. Keep it until C has opened the image.

    `files` are those of the image, top first, by absolute paths. `bitmap` is the bitmap of the top whose changes are
    told.
    """

    def __init__(self, files: Sequence[File], bitmap: str | None = None) -> None:
        self._texts: list[Any] = []
        layers = ffi.new("iou_qcow2_layer[]", len(files))
        for layer, file in zip(layers, files, strict=True):
            layer.path = self._text(file.path)
            layer.backing = ffi.NULL if file.backing is None else self._text(file.backing)
            layer.raw = file.format == "raw"
        self._layers = layers
        self._verdict = ffi.new("iou_qcow2_verdict *")
        self.chain = ffi.new("iou_qcow2_chain *", {"layers": layers, "count": len(files), "verdict": self._verdict})
        self.chain.bitmap = ffi.NULL if bitmap is None else self._text(bitmap)

    @property
    def judgment(self) -> int:
        """Return C's judgment, an iou_qcow2_judgment, or 0 if opening has failed otherwise."""
        return int(self._verdict.judgment)

    @property
    def reason(self) -> str:
        """Return why C does not serve the image, in a few words."""
        return str(ffi.string(self._verdict.reason).decode(errors="replace"))

    def why_no_bitmap(self) -> Error | None:
        """Return why C cannot use the bitmap, if it cannot."""
        if self._verdict.bitmap == lib.IOU_QCOW2_BITMAP_TOLD:
            return None
        if self._verdict.bitmap == lib.IOU_QCOW2_BITMAP_IN_USE:
            return BitmapInUse()
        return NotFound("The image does not have the bitmap that the ticket names")

    def _text(self, text: str) -> Any:
        self._texts.append(ffi.new("char[]", os.fsencode(text)))
        return self._texts[-1]
