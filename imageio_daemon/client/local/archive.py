# SPDX-License-Identifier: Apache-2.0
"""Members of tar archives, such as OVA files: read in place, or while a compressed archive or a pipe is read."""

import posixpath
import tarfile
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple, Protocol

from ...units import KiB, MiB
from ..errors import LocalError
from .source import opened_image
from .stream import Ahead, Reader

#: Files of an OVA that are no disks: description, manifest, certificate (DSP0243, "Distribution"), firmware settings.
NO_DISKS = (".ovf", ".mf", ".cert", ".nvram")
#: Most members of an archive, and most bytes of one header with its extensions, and of all headers together. A member
#: has 1 to 3 KiB of headers. Names of files are shorter than 4 KiB.
MAX_MEMBERS = 10_000
MAX_HEADER = 64 * KiB
MAX_HEADERS = 32 * MiB
#: Bytes that are read at a time to skip members of a stream.
SKIP = 1 * MiB
#: Most names that a message lists.
LISTED = 20


class Member(NamedTuple):
    """The content of a member: offset in the archive and size, in bytes. A `sparse` one is not stored byte by byte."""

    name: str
    offset: int
    size: int
    sparse: bool = False


class _Seekable(Protocol):
    def read(self, size: int) -> bytes: ...
    def seek(self, offset: int) -> int: ...


class _Headers:
    """The file from which tarfile reads headers. tarfile seeks to the next one, only forward and within the limits."""

    def __init__(self, reader: Reader, file: _Seekable | None) -> None:
        self._reader = reader
        self._file = file
        self._position = 0
        self._left = MAX_HEADERS

    def read(self, size: int) -> bytes:
        self._left -= size
        if not 0 <= size <= MAX_HEADER or self._left < 0:
            raise tarfile.ReadError("its headers are too long")
        data = b""
        while len(data) < size and (more := self._reader.read(size - len(data))):
            data += more
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a member begins before the one in front of it")
        if self._file is not None:
            self._file.seek(position)
            self._position = position
        while self._position < position and (data := self._reader.read(min(SKIP, position - self._position))):
            self._position += len(data)


#: What to do with an archive that has two members of one name.
_EXTRACT = "extract it with tar first, which takes the last"


class Content:
    """A member of an archive that is read in order to its end.

    The archive is read after the member, too, because the checksum of compressed data comes at the end. Before it, the
    member may be damaged.
    """

    def __init__(self, reader: Reader, member: Member, archive: str) -> None:
        self.member = member
        self._reader = reader
        self._archive = archive
        self._left = member.size
        self._ended = False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises LocalError, Stopped."""
        data = self._reader.read(min(size, self._left)) if self._left else b""
        self._left -= len(data)
        if not self._left and not data and not self._ended:
            self._ended = True
            self._pass_rest()
        return data

    def _pass_rest(self) -> None:
        """Read to the end. Raises LocalError if a later member has the same name: tar would take that one."""
        padding = -self.member.size % tarfile.BLOCKSIZE
        while padding and (data := self._reader.read(padding)):
            padding -= len(data)
        rest = Ahead(self._reader)
        try:
            if rest.peek(1):  # the end marker of an archive may be missing
                for later in members(rest, self._archive):
                    if _key(later.name) == _key(self.member.name):
                        raise LocalError(f"{self._archive} has several members {later.name}: {_EXTRACT}")
        finally:  # damaged compressed data is reported first, because the archive then looks damaged, too
            while rest.read(SKIP):
                pass


def members(reader: Reader, name: str, file: _Seekable | None = None) -> Iterator[Member]:
    """Yield the regular members. When one is yielded, the reader is at its content. `name` is the archive's.

    `file` is the file under the reader, if it can seek. Raises LocalError.
    """
    try:
        # Not "r|", which reads ahead, so that the bytes would be missing for the content.
        archive = tarfile.TarFile(fileobj=_Headers(reader, file), mode="r")  # type: ignore[arg-type]
        for number, found in enumerate(archive):
            if number == MAX_MEMBERS:
                raise tarfile.ReadError(f"it has more than {MAX_MEMBERS} members")
            if found.size < 0:
                raise tarfile.ReadError("a member has less than no bytes")
            if found.isreg():
                yield Member(found.name, found.offset_data, found.size, found.issparse())
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as e:
        raise LocalError(f"can't read {name} as a tar archive: {e}") from e


def members_of_file(path: Path) -> list[Member]:
    """Return the regular members of an uncompressed archive. Raises LocalError, also if one is cut off."""
    with opened_image(path) as fd, open(fd, "rb", buffering=0, closefd=False) as file:
        found = list(members(file, str(path), file))
        end = file.seek(0, 2)
    for member in found:
        if not member.sparse and member.offset + member.size > end:
            raise LocalError(f"{path} ends in the middle of {member.name}")
    return found


def enter(reader: Reader, archive: str, name: str) -> Content:
    """Read an archive up to the content of a member. Raises LocalError."""
    passed = []
    for member in members(reader, archive):
        if _key(member.name) == _key(name):
            return Content(reader, _whole(member, archive), archive)
        passed.append(member)
    return Content(reader, choose(passed, archive, name), archive)


def disks(found: Iterable[Member]) -> list[Member]:
    """Return the members that may be disks; see NO_DISKS."""
    return [member for member in found if PurePath(member.name.lower()).suffix not in NO_DISKS]


def choose(found: list[Member], archive: str, name: str | None) -> Member:
    """Return the member with a name, or by default the only disk. Raises LocalError, which lists the members."""
    chosen = [member for member in found if _key(member.name) == _key(name)] if name is not None else disks(found)
    if name is not None and not chosen:
        raise LocalError(f"{archive} has no member {name}, but {_listed(found)}")
    if name is not None and len(chosen) > 1:
        raise LocalError(f"{archive} has {len(chosen)} members {name}: {_EXTRACT}")
    if len(chosen) != 1:
        raise LocalError(
            f"{archive} has not one disk, but {_listed(chosen)}: say --member NAME, or --all with all URLs"
        )
    return _whole(chosen[0], archive)


def _key(name: str) -> str:
    """Return a key that is equal for all names of a file: tar writes ./x for x, and hosts compose letters otherwise."""
    return unicodedata.normalize("NFC", posixpath.normpath(name).lstrip("/"))


def _whole(member: Member, archive: str) -> Member:
    if member.sparse:
        raise LocalError(f"{member.name} is stored as a sparse file in {archive}: extract it with tar first")
    return member


def _listed(found: list[Member]) -> str:
    more = [f"{len(found) - LISTED} more"] if len(found) > LISTED else []
    return ", ".join([*(member.name for member in found[:LISTED]), *more]) or "none"
