# SPDX-License-Identifier: Apache-2.0
"""What a user names becomes a source: a file, a member of an archive, what qemu reads, what is decompressed, a pipe."""

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from .. import local
from ..errors import Usage
from .archive import Member, choose, disks, enter, members, members_of_file
from .formats import HEAD, TAIL, Named, check_raw, named, on_ceph
from .source import FileSource, Source, open_image
from .stream import Ahead, Input, Reader, StreamSource

log = logging.getLogger(__name__)

#: What can be read anywhere, more than once.
_Whole: TypeAlias = "FileSource | local.RbdSource"


@dataclass(frozen=True)
class How:
    """How to read a local image. None: as its name says.

    format: raw, or one that qemu knows. decompress: gz, xz, zstd or bz2. member: of a tar archive. size: in bytes, of a
    stream, and of what is decompressed. shared: other programs may write to the image meanwhile.
    """

    format: str | None = None
    decompress: str | None = None
    member: str | None = None
    size: int | None = None
    shared: bool = False


def open_source(source: str | os.PathLike[str] | BinaryIO, how: How = How()) -> Source:
    """Open a local image. Raises Usage if the arguments contradict each other or the content, LocalError."""
    if not isinstance(source, str | os.PathLike):
        return _open_stream(Input(source), how, _kind("", how))
    if on_ceph(source):
        return _open_on_ceph(str(source), how)
    path = Path(source)
    kind = _kind(path.name, how)
    if kind.compression:
        return _open_stream(Input.of_file(path), how, kind)
    if how.size is not None:
        raise Usage("a size is for streams; a file has its own")
    found = choose(members_of_file(path), str(path), how.member) if kind.archive else None
    return _open_file(path, how.format or (named(found.name).format if found else kind.format), how, found)


def disk_names(path: Path, how: How = How()) -> list[str]:
    """Return the names of the disks in an archive, in its order. Raises LocalError."""
    return [member.name for member in disks(_members(path, _kind(path.name, how).compression))]


def _kind(name: str, how: How) -> Named:
    """Return what is said by the arguments, and by the name where these say nothing."""
    says = named(name)
    if how.member is not None:
        return Named(how.decompress or says.compression, True, how.format)
    if how.format is not None:
        return Named(how.decompress, False, how.format)
    return says._replace(compression=how.decompress or says.compression)


def _members(path: Path, compression: str | None) -> list[Member]:
    if compression is None:
        return members_of_file(path)
    with contextlib.closing(Input.of_file(path)) as source:
        return list(members(local.Decompressed(source, compression, source.name), source.name))


def _open_file(path: Path, known: str | None, how: How, found: Member | None) -> Source:
    if known not in (None, "raw"):
        return local.QemuSource(path, known, found, shared=how.shared)
    offset, size = (found.offset, found.size) if found else (0, None)
    return _raw(FileSource(path, offset=offset, size=size, shared=how.shared), str(path), how)


def _open_on_ceph(address: str, how: How) -> Source:
    if how.decompress or how.member or how.size is not None or how.format not in (None, "raw"):
        raise Usage("an image on Ceph is raw, and has its own size")
    return _raw(local.RbdSource(address), address, how)


def _raw(opened: _Whole, name: str, how: How) -> Source:
    """Return a source, after a look at its ends if its format was not said. It is closed if this raises."""
    if how.format is None:
        with contextlib.ExitStack() as stack:
            stack.callback(opened.close)
            check_raw(name, _part(opened, 0, HEAD), _part(opened, opened.size - TAIL, TAIL))
            stack.pop_all()
    return opened


def _part(image: _Whole, offset: int, length: int) -> bytes:
    """Return what there is of a range of an image."""
    start, end = max(offset, 0), min(offset + length, image.size)
    buffer = bytearray(max(end - start, 0))
    image.read(start, memoryview(buffer))
    return bytes(buffer)


def _open_stream(source: Input, how: How, kind: Named) -> StreamSource:
    """Open what is read once. The input is closed if this raises."""
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        opened = _open_member(source, how, kind) if kind.archive else _open_whole(source, how, kind)
        stack.pop_all()
        return opened


def _open_member(source: Input, how: How, kind: Named) -> StreamSource:
    if how.size is not None:
        raise Usage("a size is for streams; a member of an archive has its own")
    name = how.member
    if name is None and source.path is not None:
        log.info("%s is read twice: --member saves that", source.name)
        name = choose(_members(source.path, kind.compression), source.name, None).name
    if name is None:
        raise Usage("an archive in a stream is read once: say --member NAME")
    _require_raw(how.format or named(name).format)
    found = enter(
        local.Decompressed(source, kind.compression, source.name) if kind.compression else source, source.name, name
    )
    return StreamSource(source, found.member.size, _checked(found, how, source.name), "the archive")


def _open_whole(source: Input, how: How, kind: Named) -> StreamSource:
    _require_raw(kind.format)
    size, told = _size(source, kind.compression, how.size)
    ahead = Ahead(source)
    if size is None and kind.compression == "zstd":
        size, told = local.zstd_head(ahead.peek(local.ZSTD_HEADER)), "its header"
    if size is None:
        raise Usage("a stream needs --size: the server must know how much comes")
    content = local.Decompressed(ahead, kind.compression, source.name) if kind.compression else ahead
    return StreamSource(source, size, _checked(content, how, source.name), told)


def _require_raw(known: str | None) -> None:
    if known not in (None, "raw"):
        raise Usage(f"an image of the format {known} is no stream: decompress or copy it to a file first")


def _checked(content: Reader, how: How, name: str) -> Reader:
    """Return the same content, after a look at its first bytes if its format was not said."""
    if how.format is not None:
        return content
    ahead = Ahead(content)
    check_raw(name, ahead.peek(HEAD))
    return ahead


def _size(source: Input, compression: str | None, said: int | None) -> tuple[int | None, str]:
    """Return the size of what comes, and who tells it; None: nobody but perhaps the first bytes."""
    if said is not None or source.path is None or compression is None:
        return said, "--size"
    fd = open_image(source.path)
    try:
        size = local.told_size(fd, compression)
    finally:
        os.close(fd)
    if size is not None:
        return size, "its index" if compression == "xz" else "its header"
    log.info("%s does not tell the size of what is in it: it is read twice, --size saves that", source.name)
    with contextlib.closing(Input.of_file(source.path)) as again:
        reader: Reader = local.Decompressed(again, compression, source.name)
        return local.count(reader, source.name), "the first reading"
