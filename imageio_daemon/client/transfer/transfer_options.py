# SPDX-License-Identifier: Apache-2.0
"""The options of transfers, as keyword arguments and checked, and the result of an upload.

The library's functions and the command have the same names for them. api.py says what they mean to users.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ..errors import Usage
from ..local.opening import How
from .checkpoints import CHECKPOINT
from .progress import Progress
from .record import default_directory
from .wire_compression import Compression

#: A checksum of imageio-client, in hexadecimal: BLAKE2b with 32 bytes.
CHECKSUM = "[0-9a-f]{64}"


class Arguments(TypedDict, total=False):
    """The keyword arguments of all transfers."""

    verify: bool
    restart: bool
    state: bool | str | os.PathLike[str]
    checkpoint: float
    update: bool
    base: str | None


class CopyArguments(Arguments, total=False):
    """The keyword arguments of copy()."""

    room_check: bool


class UploadArguments(CopyArguments, total=False):
    """The keyword arguments of upload()."""

    compare_all: bool
    wire_compression: Compression | str
    format: str | None
    decompress: str | None
    member: str | None
    size: int | None
    shared: bool
    expect: str | None
    bitmap: str | None


class DownloadArguments(Arguments, total=False):
    """The keyword arguments of download()."""

    format: str | None
    compress: bool
    shared: bool
    dirty: bool
    manifest: str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to transfer, in both directions. Raises Usage if two options contradict each other.

    With `verify`, compare the checksum of the transferred bytes with that of the other side. With `restart`, transfer
    all, whatever earlier transfers have done. `state` is the directory of files that tell what these have left, True
    for that of this user; with False there are no such files. `checkpoint` is the seconds between two flushes. With
    `update`, transfer only what differs from the existing target by the digests of both sides, and verify. `base` is
    the digest that a source with a bitmap had when the bitmap began, if it is known; the target may be a copy of that.
    """

    verify: bool = False
    restart: bool = False
    state: bool | str | os.PathLike[str] = True
    checkpoint: float = CHECKPOINT
    update: bool = False
    base: str | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not (self.update and re.fullmatch(CHECKSUM, self.base)):
            raise Usage("base is for an update, the 64 digits of a checksum as copy and checksum tell it")

    @property
    def verifies(self) -> bool:
        """Return whether the checksums of both sides are compared."""
        return self.verify or self.update

    @property
    def directory(self) -> Path | None:
        """Return the directory for the transfer's state, or None if it keeps none."""
        if isinstance(self.state, str | os.PathLike):
            return Path(self.state)
        return default_directory() if self.state else None


@dataclass(frozen=True, kw_only=True)
class SendOptions(Options):
    """How to send an image. If a server can finalize, nothing can change a verified image through this ticket any more.

    With `compare_all`, compare everything that the server has recorded of earlier uploads, not a sample. With
    `room_check`, fail before the first byte if the storage of the target is too small. `wire_compression` is for
    servers that can decode, never over a unix socket.
    """

    compare_all: bool = False
    room_check: bool = True
    wire_compression: Compression | str = Compression.AUTO

    def __post_init__(self) -> None:
        if self.wire_compression not in list(Compression):
            raise Usage("wire_compression is auto, always or never")
        super().__post_init__()
        if self.update and (self.restart or self.compare_all):
            raise Usage("an update compares all, and sends what differs")


@dataclass(frozen=True, kw_only=True)
class UploadOptions(SendOptions, How):
    """How to read a local image, and how to send it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.base is None) != (self.bitmap is None):
            raise Usage("base and bitmap belong together: the checksum of the image when its bitmap began")


@dataclass(frozen=True, kw_only=True)
class DownloadOptions(Options):
    """How to download. `format` and `compress` are those of a new file.

    With `shared`, other programs may use an existing target at the same time. With `dirty`, transfer and write only the
    extents that have changed since the server's checkpoint. `manifest` is the file that gets the digests of all blocks,
    after they are compared.
    """

    format: str | None = None
    compress: bool = False
    shared: bool = False
    dirty: bool = False
    manifest: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart and (self.update or self.dirty):
            raise Usage("with update or dirty a part is downloaded, and with restart all: give one of them")
        if self.dirty and (self.verify or self.manifest is not None):
            raise Usage("what is downloaded with dirty is a part, and the server's checksum is that of the whole image")

    @property
    def verifies(self) -> bool:
        """Return whether the checksums of both sides are compared."""
        return super().verifies or self.manifest is not None

    @property
    def continues(self) -> bool:
        """Return whether an earlier download is continued, and this one left for the next."""
        return self.directory is not None and not self.dirty and not self.update


@dataclass(frozen=True)
class Uploaded:
    """The result of an upload.

    `local` tells that it used the server's unix socket. `checksum` is set if the image was verified. `verified` tells
    what a server that finalizes has compared: the image `read` back from storage, or the bytes as `received`.
    """

    progress: Progress
    connections: int
    local: bool
    checksum: str | None = None
    verified: str | None = None
