# SPDX-License-Identifier: Apache-2.0
"""Records of what transfers have left on stable storage: the server's, and state files of this host.

A state file has claims, the ranges that were flushed. They are proven before they are used.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...image.blake2 import short_hash
from ...image.ranges import RangeSet
from ..errors import Refused
from ..server.address import ImageUrl
from ..server.remote_image import RemoteImage
from ..unflushed import new_ranges

log = logging.getLogger(__name__)

#: Compared ranges begin at a multiple of this, in bytes, because servers compute checksums of such ranges only.
ALIGNMENT = 4096
VERSION = 2
#: Suffixes of the files of uploads and of downloads.
UPLOAD, DOWNLOAD = ".upload", ".download"
#: The names of states, and of new ones that a killed transfer has left. The directory may have files of others, too.
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.(upload|download)(\.new)?")
#: Most bytes of a state file. A range takes 30 bytes, and connections work at a few places at a time.
MAX_FILE = 4 * 1024**2
#: Most states of other URLs that are compared with the target: the newest ones.
MOST_OTHERS = 4
#: Seconds after which an unused state is removed. Servers remove their records after the same time.
MOST_AGE = 14 * 24 * 3600.0


def aligned(ranges: Iterable[tuple[int, int]]) -> RangeSet:
    """Return the parts of (start, end) ranges that can be compared."""
    return new_ranges((-(-start // ALIGNMENT) * ALIGNMENT, end) for start, end in ranges)


class Claim(NamedTuple):
    """The (start, end) ranges that are done, by a state, and whether it is from a transfer with this URL."""

    done: list[tuple[int, int]]
    same_url: bool


class States:
    """The states of transfers between one local image and remote ones of one size.

    There is a file for each URL, which is locked while it is in use. Its name has hashes of the identity of the local
    image (`local`) and of the URL, whose path is a secret. `kind` is UPLOAD or DOWNLOAD. Methods except claims() raise
    OSError.
    """

    def __init__(
        self, directory: Path, local: Mapping[str, object], url: ImageUrl, remote_size: int, kind: str = UPLOAD
    ) -> None:
        self.directory = directory
        self._kind = kind
        self._local = short_hash(json.dumps([VERSION, dict(local), remote_size], sort_keys=True))
        self._own = directory / f"{self._local}-{short_hash(f'{url.host} {url.port} {url.path}')}{kind}"
        self._held: tuple[Path, int] | None = None  # the locked file, and its descriptor

    def claims(self) -> Iterator[Claim]:
        """Yield the claim of each state that is not in use, first that of this URL, then the newest ones.

        A state is locked until the caller asks for the next one. The last one that the caller takes belongs to this
        transfer.
        """
        for path in [self._own, *self._others()]:
            self.release()
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                fd = _lock(path)
                self._held = (path, fd)
                yield Claim(_read(fd), path == self._own)
        self.release()

    def save(self, done: list[tuple[int, int]]) -> None:
        """Write the state of this transfer, in place of the one it has taken. This is atomic, by rename(2)."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._own.with_name(f"{self._own.name}.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(fd, "w", closefd=False) as file:
                json.dump({"done": done}, file)
            os.fsync(fd)
            new.replace(self._own)
            if self._held and self._held[0] != self._own:
                self._held[0].unlink(missing_ok=True)
            elif not self._held:
                self._tidy()
        except BaseException:
            os.close(fd)
            raise
        self.release()
        self._held = (self._own, fd)

    def remove(self) -> None:
        """Remove the state of this transfer, also a new one that a transfer killed in save() has left."""
        for path in {self._own, self._held[0] if self._held else self._own}:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.new").unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Unlock the state, so that the next transfer can use it."""
        if self._held:
            os.close(self._held[1])
            self._held = None

    def _others(self) -> list[Path]:
        found: list[tuple[float, Path]] = []
        for path in self.directory.glob(f"{self._local}-*{self._kind}"):
            with contextlib.suppress(OSError):  # a transfer has ended since
                found.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(found, reverse=True) if path != self._own][:MOST_OTHERS]

    def _tidy(self) -> None:
        """Remove states that were not used for MOST_AGE."""
        oldest = time.time() - MOST_AGE
        for path in (path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    os.close(_lock(path))  # fails if it is in use
                    path.unlink()


class Record:
    """What need not be sent again, by the server's record and by a state file. docs/adr/0037 says why there are two.

    `on_server` tells that the server has a record for the ticket. `states` has the state files, if any.
    """

    def __init__(self, *, on_server: bool = False, states: States | None = None) -> None:
        self._on_server = on_server
        self._states = states

    @property
    def is_kept(self) -> bool:
        """Return whether the next transfer can continue where this one ends."""
        return self._on_server or self._states is not None

    def durable(self, image: RemoteImage) -> RangeSet:
        """Return the ranges in the server's record, if there is one. Raises as RemoteImage does."""
        if not self._on_server:
            return new_ranges()
        try:
            extents = image.extents("durable")
        except Refused as e:
            if e.http_status != 404:
                raise
            self._on_server = False
            return new_ranges()
        return new_ranges((extent.start, extent.end) for extent in extents if extent.durable)

    def claims(self) -> Iterator[Claim]:
        """Yield the claims of transfers of this host, perhaps of these images; see States.claims()."""
        if self._states:
            yield from self._states.claims()

    def save(self, durable: list[tuple[int, int]]) -> None:
        """Write the file. If that fails, the transfer goes on without it."""
        self._change(lambda states: states.save(durable))

    def discard(self) -> None:
        """Remove the file, so that the next transfer starts from the beginning."""
        self._change(States.remove)

    def release(self) -> None:
        """Let the next transfer use the file."""
        if self._states:
            self._states.release()

    def close(self) -> None:
        """Discard the record for good, because the storage may have lost recorded bytes."""
        self.discard()
        self._states = None
        self._on_server = False

    def _change(self, change: Callable[[States], None]) -> None:
        if self._states:
            try:
                change(self._states)
            except OSError as e:
                where = e.filename or self._states.directory  # a full disk tells no name
                log.warning("can't keep what is done in %s: %s (--state-dir DIR keeps it elsewhere)", where, e.strerror)
                self._states.release()
                self._states = None


def default_directory() -> Path | None:
    """Return where states are kept (XDG Base Directory Specification 0.8), or None if this user has no home."""
    told = os.environ.get("XDG_STATE_HOME", "")
    home = Path(told if told.startswith("/") else os.path.expanduser("~/.local/state"))
    return home / "imageio-client" if home.is_absolute() else None


def _lock(path: Path) -> int:
    """Open and lock a file. Raises OSError, also if it is in use or was replaced since."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), path.stat()):
            raise BlockingIOError(errno.EWOULDBLOCK, "replaced", str(path))
        stack.pop_all()
    return fd


def _read(fd: int) -> list[tuple[int, int]]:
    """Return the ranges in a file. Raises OSError, ValueError or TypeError for anything else."""
    text = os.pread(fd, MAX_FILE + 1, 0)
    content = json.loads(text if len(text) <= MAX_FILE else b"")
    if not isinstance(content, dict):
        raise TypeError("no object")
    return [_range(start, end) for start, end in content.get("done", ())]


def _range(start: object, end: object) -> tuple[int, int]:
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        raise ValueError("not a range")
    return start, end
