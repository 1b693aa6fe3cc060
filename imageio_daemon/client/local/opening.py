# SPDX-License-Identifier: Apache-2.0
"""What a user names becomes a source: a file, a part of one, what qemu reads, what is decompressed, a stream."""

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import Usage
from .compressed import Decompressed, count
from .formats import HEAD, TAIL, check_raw, named
from .qemu import QemuSource
from .sizes import ZSTD_HEADER, told_size, zstd_head
from .source import FileSource, Source, open_image
from .stream import Ahead, Input, Reader, StreamSource
from .tar import find_member

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class How:
    """How to read a local image. None: as its name says.

    format: raw, or one that qemu knows. decompress: gz, xz, zstd or bz2. member: of a tar archive. size: in bytes, of a
    stream, and of what is decompressed.
    """

    format: str | None = None
    decompress: str | None = None
    member: str | None = None
    size: int | None = None


def open_source(source: str | os.PathLike[str] | BinaryIO, how: How = How()) -> Source:
    """Open a local image. Raises Usage if the arguments contradict each other or the content, LocalError."""
    if not isinstance(source, str | os.PathLike):
        return _open_stream(Input(source), how, how.decompress, how.format)
    path = Path(source)
    says = named(path.name)
    if compression := how.decompress or (says.compression if how.format is None else None):
        return _open_stream(Input.of_file(path), how, compression, how.format or says.format)
    if how.size is not None:
        raise Usage("a size is for streams; a file has its own")
    return _open_file(path, how)


def _open_file(path: Path, how: How) -> Source:
    found = find_member(path, how.member) if how.member is not None else None
    known = how.format or named(found.name if found else path.name).format
    if known not in (None, "raw"):
        return QemuSource(path, known, found)
    opened = FileSource(path, offset=found.offset, size=found.size) if found else FileSource(path)
    if how.format is None:
        with contextlib.ExitStack() as stack:
            stack.callback(opened.close)
            check_raw(str(path), _part(opened, 0, HEAD), _part(opened, opened.size - TAIL, TAIL))
            stack.pop_all()
    return opened


def _part(image: FileSource, offset: int, length: int) -> bytes:
    """Return what there is of a range of an image."""
    start, end = max(offset, 0), min(offset + length, image.size)
    buffer = bytearray(max(end - start, 0))
    image.read(start, memoryview(buffer))
    return bytes(buffer)


def _open_stream(source: Input, how: How, compression: str | None, known: str | None) -> StreamSource:
    """Open what is read once. The input is closed if this raises."""
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        if how.member is not None:
            raise Usage("members are read of uncompressed archives that are files")
        if known not in (None, "raw"):
            raise Usage(f"an image of the format {known} is no stream: decompress or copy it to a file first")
        size, told = _size(source, compression, how.size)
        ahead = Ahead(source)
        if size is None and compression == "zstd":
            size, told = zstd_head(ahead.peek(ZSTD_HEADER)), "its header"
        if size is None:
            raise Usage("a stream needs --size: the server must know how much comes")
        content = Ahead(Decompressed(ahead, compression, source.name)) if compression else ahead
        if how.format is None:
            check_raw(source.name, content.peek(HEAD))
        opened = StreamSource(source, size, content, told)
        stack.pop_all()
        return opened


def _size(source: Input, compression: str | None, said: int | None) -> tuple[int | None, str]:
    """Return the size of what comes, and who tells it; None: nobody but perhaps the first bytes."""
    if said is not None or source.path is None or compression is None:
        return said, "--size"
    fd = open_image(source.path)
    try:
        size = told_size(fd, compression)
    finally:
        os.close(fd)
    if size is not None:
        return size, "its index" if compression == "xz" else "its header"
    log.info("%s does not tell the size of what is in it: it is read twice, --size saves that", source.name)
    with contextlib.closing(Input.of_file(source.path)) as again:
        reader: Reader = Decompressed(again, compression, source.name)
        return count(reader, source.name), "the first reading"
