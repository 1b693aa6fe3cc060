# SPDX-License-Identifier: Apache-2.0
"""The states of uploads, in files of this host: the ranges that were flushed. What they tell is proven before use."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..server.address import ImageUrl

VERSION = 2
SUFFIX = ".upload"
#: Largest state file, in bytes. A range takes 30 bytes, and connections work at a few places at a time.
MAX_FILE = 4 * 1024**2
#: States of other URLs that are compared with the target: the newest ones.
MOST_OTHERS = 4
#: Seconds after which a state that nobody has used is removed, as the records of servers are.
MOST_AGE = 14 * 24 * 3600.0


class Claim(NamedTuple):
    """What a state tells: the (start, end) ranges that are done. same_url: of an upload to this URL."""

    done: list[tuple[int, int]]
    same_url: bool


class States:
    """The states of uploads of one source to targets of one size: a file for each URL, locked while it is in use.

    The name of a file has hashes of what the source is and of the URL, whose path is a secret. Methods raise OSError,
    but for claims().
    """

    def __init__(self, directory: Path, source: Mapping[str, object], url: ImageUrl, target_size: int) -> None:
        self._directory = directory
        self._source = _hash(json.dumps([VERSION, dict(source), target_size], sort_keys=True))
        self._own = directory / f"{self._source}-{_hash(f'{url.host} {url.port} {url.path}')}{SUFFIX}"
        self._held: tuple[Path, int] | None = None  # a file that is locked, and its descriptor

    def claims(self) -> Iterator[Claim]:
        """Yield what each state tells, that of this URL first, then the newest ones. Those in use are left out.

        The state is locked until the next claim is asked for, and the last one belongs to this upload.
        """
        for path in [self._own, *self._others()]:
            self.release()
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                fd = _lock(path)
                self._held = (path, fd)
                yield Claim(_read(fd), path == self._own)
        self.release()

    def save(self, done: list[tuple[int, int]]) -> None:
        """Write the state of this upload, in the place of the one that was claimed. Atomic, by rename(2)."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._own.with_name(f"{self._own.name}.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(fd, "w", closefd=False) as file:
                json.dump({"done": done}, file)
            os.fsync(fd)
            new.replace(self._own)
        except BaseException:
            os.close(fd)
            raise
        if self._held and self._held[0] != self._own:
            self._held[0].unlink(missing_ok=True)
        elif not self._held:
            self._tidy()
        self.release()
        self._held = (self._own, fd)

    def remove(self) -> None:
        """Remove the state of this upload, and the new one of an upload that was killed in save()."""
        for path in {self._own, self._held[0] if self._held else self._own}:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.new").unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Unlock the state, so that the next upload can use it."""
        if self._held:
            os.close(self._held[1])
            self._held = None

    def _others(self) -> list[Path]:
        found: list[tuple[float, Path]] = []
        for path in self._directory.glob(f"{self._source}-*{SUFFIX}"):
            with contextlib.suppress(OSError):  # an upload has ended meanwhile
                found.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(found, reverse=True) if path != self._own][:MOST_OTHERS]

    def _tidy(self) -> None:
        """Remove states that nobody has used for long."""
        oldest = time.time() - MOST_AGE
        for path in self._directory.glob(f"*{SUFFIX}*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    os.close(_lock(path))  # fails if it is in use
                    path.unlink()


def default_directory() -> Path | None:
    """Return where states are kept: the XDG Base Directory Specification 0.8. None: this user has no home."""
    told = os.environ.get("XDG_STATE_HOME", "")
    home = Path(told if told.startswith("/") else os.path.expanduser("~/.local/state"))
    return home / "imageio-client" if home.is_absolute() else None


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _lock(path: Path) -> int:
    """Open and lock a file. Raises OSError, also if it is in use or was replaced meanwhile."""
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
