# SPDX-License-Identifier: Apache-2.0
"""Images in the format qcow2 that the C extension reads and writes, without a program of qemu."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ioutil_ext import ffi, lib

from ...errors import StorageError, Unusable
from ...image.chain import NOT_SERVED, ChainMemory, QemuImage, inspect
from ...image.extents import Extent
from ...units import KiB
from ..errors import LocalError, Stopped
from .in_use import END, END_OR_SHARE, locked_file
from .local_image import execute, size_of
from .source import identity, opened_image

#: Extents that are asked for at a time.
RECORDS = 4096
#: Cluster size of new images, in bytes, qemu's default.
CLUSTER = 64 * KiB
#: Files that an image may name: the user, whose command this is, can read them by qemu's programs, too.
ANY_FILE = ("/",)


class NeedsQemu(Exception):
    """The C extension does not do all that the image needs. Nothing was changed, and qemu may open it."""


class Stopping:
    """A request to the calls of one image to end. Thread-safe."""

    def __init__(self) -> None:
        #: What C looks at.
        self.control = ffi.new("iou_control *")

    @property
    def is_set(self) -> bool:
        """Return whether stop() was called."""
        return bool(self.control.canceled)

    def stop(self) -> None:
        """Let running calls end soon, and later ones raise Stopped."""
        self.control.canceled = 1


class Qcow2Image:
    """An open image, and the files below it, which are locked. Thread-safe. Methods block, and raise LocalError.

    `name` is the image's name in messages. With `shared`, other programs may write to the image, and nothing is locked.
    `stopping` is for who may have to stop the image before it is open: to write, all of its tables are read then.
    The constructor raises NeedsQemu, too. An image to read is left to qemu if one of its extents cannot be found, as in
    a file whose end is missing.
    """

    def __init__(
        self, path: Path, name: str, *, writable: bool = False, shared: bool = False, stopping: "Stopping | None" = None
    ) -> None:
        self._name = name
        self._writable = writable
        self._stopping = stopping or Stopping()
        #: Whether the image was flushed and closed.
        self.ended_well = False
        try:
            chain = inspect(QemuImage(str(path.absolute()), "qcow2", True, ANY_FILE))
        except Unusable as e:  # qemu tells it better, or opens it
            raise NeedsQemu(e.told.removeprefix(NOT_SERVED)) from e
        except StorageError as e:
            raise NeedsQemu(f"not all of its files can be opened ({os.strerror(e.errno)})") from e
        if not chain.is_native:
            raise NeedsQemu("a file below it has another format")
        with contextlib.ExitStack() as opened:
            self._files: list[Path] = []
            for file in chain.files:
                fd = opened.enter_context(opened_image(Path(file.path)))
                if not self._files and not os.path.samestat(os.stat(path), os.fstat(fd)):
                    raise NeedsQemu("its path leads elsewhere")  # through a link that has no name, as in proc(5)
                link = Path(f"/proc/self/fd/{fd}")
                if not shared:
                    writes = writable and not self._files
                    # Two programs that write the tables of one image destroy it: --shared is for readers.
                    remedy = END if writable else END_OR_SHARE
                    opened.enter_context(locked_file(Path(file.path), link, writes=writes, remedy=remedy))
                self._files.append(link)
            # By the links C opens the files that were locked, whatever has their names now.
            files = [file._replace(path=str(link)) for file, link in zip(chain.files, self._files, strict=True)]
            self._handle = self._open(ChainMemory(files))
            self._opened = opened.pop_all()
        #: Bytes of the disk.
        self.size = size_of(self._handle)
        if not writable and not shared:
            self._require_whole()

    def files(self) -> list[Path]:
        """Return the files and devices of which the image consists, top first, as links to the open files."""
        return self._files

    def identity(self, file: Path) -> dict[str, object] | None:
        """Return the identity() of one of the files."""
        return identity(file)

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps."""
        offset = 0
        for records in self._records():
            for record in records:
                end = int(record.end)
                yield Extent(offset, end - offset, zero=bool(record.flags & lib.IOU_EXTENT_ZERO))
                offset = end

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        self._run(lib.IOU_READ, "read", offset, len(buffer), ffi.from_buffer(buffer, require_writable=True))

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of the data."""
        self._run(lib.IOU_WRITE, "write", offset, len(data), ffi.from_buffer(data))

    def zero(self, offset: int, length: int) -> None:
        """Make the range read as zeros, and deallocate it."""
        self._run(lib.IOU_ZERO, "write zeros to", offset, length)

    def flush(self) -> None:
        """Put all that was written on stable storage."""
        self._run(lib.IOU_FLUSH, "flush")

    def finish(self) -> None:
        """Flush and close. Raises Stopped if stop() came before the end."""
        self.flush()
        self.close()

    def stop(self) -> None:
        """Let running calls end soon, and later ones raise Stopped. A call of storage is not interrupted."""
        self._stopping.stop()

    def close(self) -> None:
        """Flush, also after stop(), and close the files. Call this when no other call runs. Later calls do nothing.

        Raises LocalError if that fails, but not after stop().
        """
        if self._handle == ffi.NULL:
            return
        handle, self._handle = self._handle, ffi.NULL
        with self._opened:
            flushed = execute(handle, lib.IOU_FLUSH).error if self._writable else 0
            closed = execute(handle, lib.IOU_CLOSE).error
        error = flushed or closed
        self.ended_well = error == 0
        if error and not self._stopping.is_set:
            raise LocalError(f"can't close {self._name}: {os.strerror(error)}")

    def _open(self, memory: ChainMemory) -> Any:
        """Return the handle. Raises LocalError, Stopped and NeedsQemu."""
        completion = ffi.new("iou_completion *")
        # The locks are ours. Reads of other programs fill the page cache, too; writes past it cost half the time.
        flags = lib.IOU_SHARED | (lib.IOU_WRITABLE if self._writable else lib.IOU_BUFFERED)
        error = -lib.iou_open_qcow2(memory.chain, flags, self._stopping.control, completion)
        if error and memory.judgment:
            raise NeedsQemu(memory.reason)
        if error == errno.ECANCELED:
            raise Stopped("stopped")
        if error:
            how = " to write to it" if self._writable else ""
            raise LocalError(f"can't open {self._name}{how}: {os.strerror(error)}")
        return completion.handle

    def _require_whole(self) -> None:
        try:
            for _ in self._records():  # C finds 400,000 in 0.06 s, and Extent has them in 0.9 s
                pass
        except BaseException as e:
            self.close()
            if isinstance(e, LocalError):
                raise NeedsQemu("its tables are damaged") from e
            raise

    def _records(self) -> Iterator[Any]:
        """Yield some extents after the other, as C has them."""
        records = ffi.new("iou_extent[]", RECORDS)
        offset, size = 0, self.size
        while offset < size:
            found = self._run(lib.IOU_EXTENTS, "find the holes of", offset, size - offset, records)
            yield records[0 : found.count]
            offset = int(records[found.count - 1].end)

    def _run(self, kind: int, what: str, offset: int = 0, length: int = 0, buffer: Any = ffi.NULL) -> Any:
        size = 0 if buffer == ffi.NULL else ffi.sizeof(buffer)
        completion = execute(self._handle, kind, 0, offset, length, buffer, size, self._stopping.control)
        if completion.error == errno.ECANCELED:
            raise Stopped("stopped")
        if completion.error:
            damaged = ": it is damaged there, or its storage is" if kind == lib.IOU_READ else ""
            place = f" at byte {offset + completion.done}" if length else ""
            raise LocalError(f"can't {what} {self._name}{place}: {os.strerror(completion.error)}{damaged}")
        return completion


def create_qcow2(path: Path, size: int) -> None:
    """Make an image in an empty file. `size` is that of the disk, in bytes. Raises LocalError."""
    options = ffi.new("iou_qcow2_options *", {"size": size, "cluster_bits": CLUSTER.bit_length() - 1})
    error = -lib.iou_create_qcow2(os.fsencode(path), options)
    if error:
        raise LocalError(f"can't make a qcow2 image in {path}: {os.strerror(error)}")
