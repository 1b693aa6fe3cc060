# SPDX-License-Identifier: Apache-2.0
"""The options of transfers, and the result of an upload."""

from dataclasses import dataclass
from pathlib import Path

from .checkpoints import CHECKPOINT
from .progress import Progress
from .wire_compression import Compression


@dataclass(frozen=True)
class Options:
    """How to upload.

    With `verify`, the server compares the image with the checksum of what was read. If it can finalize, nothing can
    then change the image through this ticket any more. With `restart`, send all, whatever earlier uploads have sent.
    With `compare_all`, compare everything that the server has recorded of them, not a sample. `state` is the directory
    of files that tell what was sent by other tickets, and to servers without a record; with None there are no such
    files. `checkpoint` is the seconds between two flushes. With `room_check`, fail before the first byte if the storage
    of the target is too small. `wire_compression` is for servers that can decode, never over a unix socket. With
    `update`, send only what differs by the digests of both sides, and verify. `base` is the digest that a source with a
    bitmap had when the bitmap began, if it is known; the target may be a copy of that.
    """

    verify: bool = False
    restart: bool = False
    compare_all: bool = False
    state: Path | None = None
    checkpoint: float = CHECKPOINT
    room_check: bool = True
    wire_compression: Compression = Compression.AUTO
    update: bool = False
    base: str | None = None


@dataclass(frozen=True)
class DownloadOptions:
    """How to download.

    With `dirty`, transfer and write only the extents that have changed since the server's checkpoint. With `verify`,
    compare the checksum of the result with the server's. `restart`, `state` and `checkpoint` are as in Options.
    `manifest` is the file that gets the digests, with `verify`. With `update`, receive only what differs from the
    existing target.
    """

    dirty: bool = False
    verify: bool = False
    restart: bool = False
    state: Path | None = None
    checkpoint: float = CHECKPOINT
    manifest: Path | None = None
    update: bool = False


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


#: The options by default.
DEFAULTS = Options()
