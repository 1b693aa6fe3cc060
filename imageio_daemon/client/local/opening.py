# SPDX-License-Identifier: Apache-2.0
"""Open a source by its name: a file, a member of an archive, an image for qemu, compressed data, or a pipe."""

import contextlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from ..errors import LocalError, Usage
from ..fetched import Fetched
from .archive import Member, choose, disks, enter, members, members_of_file
from .formats import Named, is_elsewhere, named, on_ceph
from .marks import DECOMPRESSED, FILE, HEAD, MEMBER, PIPE, TAIL, WITHIN, check_raw
from .source import FileSource, Source, opened_image
from .stream import Ahead, ExpectedDigest, Input, Reader, StreamSource, Watch, unwatched

if TYPE_CHECKING:
    from .nbd_image import Secure

log = logging.getLogger(__name__)

#: What a source is opened from: a path or an address, a stream, or a file of a web server.
Origin: TypeAlias = str | os.PathLike[str] | BinaryIO | Fetched

#: The addresses of images in messages.
ADDRESSES = "https://, nbd://, nbds://, nbd+unix://, nbds+unix:// or rbd:"


@dataclass(frozen=True)
class How:
    """How to read a local image. Where a value is None, the name of the image tells it.

    `format` is raw, or one that qemu knows. `decompress` is gz, xz, zstd or bz2. `member` is that of a tar archive.
    `size` is that of a stream or of decompressed data, in bytes. With `shared`, other programs may write to the image
    at the same time. `secure` makes TLS to an NBD server. `expect` is the digest of the file. `bitmap` is the bitmap,
    of an image of qemu or an export, that has what has changed.
    """

    format: str | None = None
    decompress: str | None = None
    member: str | None = None
    size: int | None = None
    shared: bool = False
    secure: "Secure | None" = None
    expect: str | None = None
    bitmap: str | None = None


def open_source(source: Origin, how: How = How(), watch: Watch = unwatched) -> Source:
    """Open a local image. Raises LocalError, and Usage if the arguments contradict each other or the content.

    `watch` is called with the bytes of compressed data and streams that are read before the image is open, which may be
    all of them.
    """
    expect = None if how.expect is None else ExpectedDigest(how.expect)
    kind = _kind(_file_name(source), how)
    if not isinstance(source, str | os.PathLike):
        return _open_stream(Input(source, watch=watch, expect=expect), how, kind)
    if is_elsewhere(source):
        if expect is not None:
            raise Usage("what is expected is the digest of a file")
        return _open_elsewhere(str(source), how)
    path = Path(source)
    if "://" in os.fspath(source) and not os.path.exists(source):
        raise LocalError(f"can't open {source}: it is no file, and addresses of images begin with {ADDRESSES}")
    if how.size is not None and not kind.compression:
        raise Usage("a size is for streams; a file has its own")
    if expect is not None:  # before anything is sent
        with contextlib.closing(Input.of_file(path, watch, expect)) as whole:
            whole.check()
    if kind.compression:
        return _open_stream(Input.of_file(path, watch), how, kind)
    found = choose(members_of_file(path), str(path), how.member) if kind.archive else None
    if found and how.format is None and named(found.name).compression:
        return _open_stream(Input.of_file(path, watch), replace(how, member=found.name), kind)
    return _open_file(path, how.format or (_format(found.name) if found else kind.format), how, found)


def require_content(opened: Source, source: Origin, member: str | None) -> None:
    """Raise LocalError if there is nothing to upload."""
    if opened.size == 0:
        opened.check()  # the size 0 may be a wrong claim, too
        otherwise = source.name if isinstance(source, Fetched) else "the input"
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else otherwise
        image = name if member is None else f"{member} in {name}"
        raise LocalError(f"{image} is empty: it has 0 bytes. Name the image that has the disk")


def reading(source: Origin, how: How) -> str:
    """Return in words how a source is read: its format, whether it is in an archive, and its compression."""
    if is_elsewhere(source):
        return "raw"
    kind = _kind(_file_name(source), how)
    known = how.format or (named(how.member).format if how.member is not None else kind.format)
    is_named_inside = kind.archive and how.member is None and known is None
    parts = ["as the disk in it is named" if is_named_inside else known or "raw"]
    return ", ".join([*parts, *(["in an archive"] if kind.archive else []), *filter(None, [kind.compression])])


def disk_names(path: Path, how: How = How(), watch: Watch = unwatched) -> list[str]:
    """Return the names of the disks in an archive, in its order. `watch` is as in open_source(). Raises LocalError."""
    return [member.name for member in disks(_members(path, _kind(path.name, how).compression, watch))]


def _file_name(source: Origin) -> str:
    """Return the name whose suffixes tell how to read a source, or "" for a stream."""
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    return source.file_name if isinstance(source, Fetched) else ""


def _kind(name: str, how: How) -> Named:
    """Return what the arguments say, and what the name says where they say nothing."""
    says = named(name)
    if how.member is not None:
        return Named(how.decompress or says.compression, True, how.format)
    if how.format is not None:
        return Named(how.decompress, False, how.format)
    return says._replace(compression=how.decompress or says.compression)


def _format(member: str) -> str | None:
    """Return the format in the name of a member. A compressed member is recognized by its content, not here."""
    says = named(member)
    return None if says.compression else says.format


def _members(path: Path, compression: str | None, watch: Watch) -> list[Member]:
    if compression is None:
        return members_of_file(path)
    with contextlib.closing(Input.of_file(path, watch)) as source:
        return list(members(_decompressed(source, compression, source.name), source.name))


def _decompressed(content: Reader, compression: str | None, name: str) -> Reader:
    """Return the content decompressed, if it is compressed."""
    if compression is None:
        return content
    from .compressed import Decompressed  # noqa: PLC0415 - transfers of raw files start earlier without it

    return Decompressed(content, compression, name)


def _open_file(path: Path, known: str | None, how: How, found: Member | None) -> Source:
    if known == "qcow2" and found is None and how.bitmap is None:
        from .qcow2 import qcow2_source  # noqa: PLC0415 - as above

        return qcow2_source(path, shared=how.shared)
    if known not in (None, "raw"):
        from .qemu import MarkedQemuSource  # noqa: PLC0415 - as above

        return MarkedQemuSource(path, known, found, shared=how.shared, bitmap=how.bitmap)
    offset, size = (found.offset, found.size) if found else (0, None)
    opened = FileSource(path, offset=offset, size=size, shared=how.shared)
    return _raw(opened, _name(found, str(path)), MEMBER, how) if found else _raw(opened, str(path), FILE, how)


def _open_elsewhere(address: str, how: How) -> Source:
    what = "an image on Ceph" if on_ceph(address) else "an export of an NBD server"
    if how.decompress or how.member or how.size is not None or how.format not in (None, "raw"):
        raise Usage(f"{what} is raw, and has its own size")
    if on_ceph(address):
        from .rbd import RbdSource  # noqa: PLC0415 - as above

        return _raw(RbdSource(address), address, WITHIN, how)
    from .nbd_export import NbdSource  # noqa: PLC0415 - as above

    return _raw(NbdSource(address, how.secure, how.bitmap), address, WITHIN, how)


def _name(member: Member, archive: str) -> str:
    return f"{member.name} in {archive}"


def _raw(opened: Source, name: str, place: frozenset[str], how: How) -> Source:
    """Return a source. If its format was not given, check that it looks raw, and close it if not."""
    if how.format is None:
        with contextlib.ExitStack() as stack:
            stack.callback(opened.close)
            check_raw(name, place, _part(opened, 0, HEAD), _part(opened, opened.size - TAIL, TAIL))
            stack.pop_all()
    return opened


def _part(image: Source, offset: int, length: int) -> bytes:
    """Return the bytes of a range that are inside the image."""
    start, end = max(offset, 0), min(offset + length, image.size)
    buffer = bytearray(max(end - start, 0))
    image.read(start, memoryview(buffer))
    return bytes(buffer)


def _open_stream(source: Input, how: How, kind: Named) -> Source:
    """Open an input that is read once. Close it if this raises, or if all of it was read."""
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        opened = _open_member(source, how, kind) if kind.archive else _open_whole(source, how, kind)
        source.watch = unwatched
        if opened.is_stream:
            stack.pop_all()
        return opened


def _spool(reader: Reader, source: Input, name: str, known: str | None, how: How) -> Source:
    """Write data that is read in any order to a temporary file, and open that. `known` is its format, if not raw."""
    from .spool import Spool  # noqa: PLC0415 - as above

    log.info("%s is written to a temporary file first", name)
    with contextlib.closing(Spool(reader, name)) as spool:  # the source has it open then
        source.check()  # before any of it is sent
        if known in (None, "raw"):
            raw = FileSource(spool.path)
            raw.identity = None  # nobody can find it again
            return _raw(raw, name, DECOMPRESSED, how)
        from .qemu import QemuSource  # noqa: PLC0415 - as above

        image = QemuSource(spool.path, known, name=name)
        image.identity = None
        return image


def _open_member(source: Input, how: How, kind: Named) -> Source:
    if how.size is not None:
        raise Usage("a size is for streams; a member of an archive has its own")
    name = how.member
    if name is None and source.path is not None:
        log.info("%s is read twice: --member saves that", source.name)
        name = choose(_members(source.path, kind.compression, source.watch), source.name, None).name
    if name is None:
        raise Usage("an archive in a stream is read once: say --member NAME")
    found = enter(_decompressed(source, kind.compression, source.name), source.name, name)
    shown, says = _name(found.member, source.name), named(name)
    known = how.format or says.format
    if known not in (None, "raw") or (how.format is None and says.compression):
        packed = says.compression if how.format is None else None
        return _spool(_decompressed(found, packed, shown), source, shown, known, how)
    return StreamSource(source, found.member.size, _checked(found, how, shown, WITHIN), "the archive")


def _open_whole(source: Input, how: How, kind: Named) -> Source:
    known = kind.format
    if known not in (None, "raw"):
        if how.size is not None:
            raise Usage(f"a size is for what is raw; an image of the format {known} has its own")
        return _spool(_decompressed(source, kind.compression, source.name), source, source.name, known, how)
    size, told = _size(source, kind.compression, how.size)
    source.watch = unwatched  # the reads below are short
    ahead = Ahead(source)
    if size is None and kind.compression == "zstd":
        from .sizes import ZSTD_HEADER, zstd_head  # noqa: PLC0415 - as above

        # A first frame without data says nothing about the next frames.
        size, told = zstd_head(ahead.peek(ZSTD_HEADER)) or None, "its header"
    if size is None and kind.compression is None and source.size is not None:
        size, told = source.size, "its server"
    if size is None and kind.compression and source.size is not None:
        return _spool(_decompressed(ahead, kind.compression, source.name), source, source.name, None, how)
    if size is None:
        raise Usage("a stream needs --size: the server must know how much comes")
    if kind.compression:
        raw = f"--decompress {kind.compression} --format raw"
        content = _decompressed(ahead, kind.compression, source.name)
        return StreamSource(source, size, _checked(content, how, source.name, DECOMPRESSED, raw), told)
    return StreamSource(source, size, _checked(ahead, how, source.name, PIPE), told)


def _checked(content: Reader, how: How, name: str, place: frozenset[str], raw: str = "--format raw") -> Reader:
    """Return the same content. If its format was not given, check that its first bytes look raw."""
    if how.format is not None:
        return content
    ahead = Ahead(content)
    check_raw(name, place, ahead.peek(HEAD), raw=raw)
    return ahead


def _size(source: Input, compression: str | None, said: int | None) -> tuple[int | None, str]:
    """Return the size of the data, and what tells it. None if nothing does, except perhaps the first bytes."""
    if said is not None or source.path is None or compression is None:
        return said, "--size"
    from .compressed import count  # noqa: PLC0415 - as above
    from .sizes import told_size  # noqa: PLC0415 - as above

    with opened_image(source.path) as fd:
        size = told_size(fd, compression)
    if size is not None:
        return size, "its index" if compression == "xz" else "its header"
    log.info("%s does not tell the size of what is in it: it is read twice, --size saves that", source.name)
    with contextlib.closing(Input.of_file(source.path, source.watch)) as again:
        return count(_decompressed(again, compression, source.name), source.name), "the first reading"
