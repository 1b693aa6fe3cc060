# SPDX-License-Identifier: Apache-2.0
"""What transfers are asked for, and what an upload returns."""

from dataclasses import dataclass
from pathlib import Path

from .checkpoints import CHECKPOINT
from .progress import Progress
from .wire_compression import Compression


@dataclass(frozen=True)
class Options:
    """How to upload.

    verify: let the server compare the image with the checksum of what was read; where it can finalize, nothing can
    change it through this ticket any more then. restart: send all, whatever earlier uploads have sent. compare_all:
    compare all that the server has recorded of them, not a sample. state: the directory of the files that tell what was
    sent by other tickets, and to servers without a record; None: nobody does. checkpoint: seconds between two flushes.
    room_check: end before the first byte if the storage of the target is too small. wire_compression: of data on its
    way, where the server takes it; never over a unix socket. update: send only what differs, by the digests of both
    sides, and verify. base: the digest of what a source with a bitmap was when that began, of which the target may be a
    copy; None: nobody knows.
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

    dirty: transfer and write only the extents that have changed since the server's checkpoint. verify: compare the
    checksum of what was received, or was there, with the server's. restart, state, checkpoint: as of Options. manifest:
    the file that gets the digests, with verify. update: receive only what differs from the target that is there.
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

    local: it used the server's unix socket. checksum: if it was verified. verified: what a server that finalizes has
    compared, `read` back from storage, or as it was `received`.
    """

    progress: Progress
    connections: int
    local: bool
    checksum: str | None = None
    verified: str | None = None


#: What is asked for if nothing is said.
DEFAULTS = Options()
