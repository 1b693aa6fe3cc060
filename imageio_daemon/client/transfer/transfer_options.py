# SPDX-License-Identifier: Apache-2.0
"""The options of transfers, and the result of an upload."""

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import Usage
from .checkpoints import CHECKPOINT
from .progress import Progress
from .wire_compression import Compression

#: A checksum of imageio-client, in hexadecimal: BLAKE2b with 32 bytes.
CHECKSUM = "[0-9a-f]{64}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to transfer, in both directions. Raises Usage if two options contradict each other.

    With `verify`, compare the checksum of the transferred bytes with that of the other side. With `restart`, transfer
    all, whatever earlier transfers have done. `state` is the directory of files that tell what these have left; with
    None there are no such files. `checkpoint` is the seconds between two flushes. With `update`, transfer only what
    differs from the existing target by the digests of both sides, and verify. `base` is the digest that a source with a
    bitmap had when the bitmap began, if it is known; the target may be a copy of that.
    """

    verify: bool = False
    restart: bool = False
    state: Path | None = None
    checkpoint: float = CHECKPOINT
    update: bool = False
    base: str | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not (self.update and re.fullmatch(CHECKSUM, self.base)):
            raise Usage("base is for an update, the 64 digits of a checksum as copy and checksum tell it")

    @property
    def verifies(self) -> bool:
        """Tell whether the checksums of both sides are compared."""
        return self.verify or self.update


@dataclass(frozen=True, kw_only=True)
class UploadOptions(Options):
    """How to upload. If a server can finalize, nothing can change a verified image through this ticket any more.

    With `compare_all`, compare everything that the server has recorded of earlier uploads, not a sample. With
    `room_check`, fail before the first byte if the storage of the target is too small. `wire_compression` is for
    servers that can decode, never over a unix socket.
    """

    compare_all: bool = False
    room_check: bool = True
    wire_compression: Compression = Compression.AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.update and (self.restart or self.compare_all):
            raise Usage("an update compares all, and sends what differs")


@dataclass(frozen=True, kw_only=True)
class DownloadOptions(Options):
    """How to download.

    With `dirty`, transfer and write only the extents that have changed since the server's checkpoint. `manifest` is the
    file that gets the digests of all blocks, after they are compared.
    """

    dirty: bool = False
    manifest: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart and (self.update or self.dirty):
            raise Usage("with update or dirty a part is downloaded, and with restart all: give one of them")
        if self.dirty and (self.verify or self.manifest):
            raise Usage("what is downloaded with dirty is a part, and the server's checksum is that of the whole image")

    @property
    def verifies(self) -> bool:
        """Tell whether the checksums of both sides are compared."""
        return super().verifies or self.manifest is not None

    @property
    def continues(self) -> bool:
        """Tell whether an earlier download is continued, and this one left for the next."""
        return self.state is not None and not self.dirty and not self.update


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
