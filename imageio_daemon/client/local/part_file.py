# SPDX-License-Identifier: Apache-2.0
"""The file NAME.part, which is renamed to NAME when it is complete."""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import LocalError
from .attributes import admits_no_more, take_over

SUFFIX = ".part"
#: Hexadecimal digits of the SHA-256 of a name that is too long for SUFFIX.
DIGITS = 32


class PartFile:
    """A new file in the directory of `path`, locked against other downloads (flock(2)). Methods raise LocalError.

    Follows a symbolic link, as cp does. The new file replaces the one at `path`. So it gets that file's owner,
    permissions, ACL and extended attributes before it has data. A file that may not be written is not replaced.

    With `continues`, take the file that an earlier download has left, unless somebody may have it open who may not open
    a new one. Then `is_earlier` is true, and the content is unknown.
    """

    def __init__(self, path: Path, *, continues: bool = False) -> None:
        self.is_earlier = False
        self.final = Path(os.path.realpath(path)) if path.is_symlink() else path
        self.path = self.final.with_name(self.final.name + SUFFIX)
        self._fd = self._directory = -1
        try:
            self._require_writable(path)
            self._fd = self._create(continues=continues)
            self._directory = os.open(self.final.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            take_over(self._fd, self.final)
        except OSError as e:
            self.leave()
            raise self._failed(e) from e
        except LocalError:
            self.leave()
            raise

    @property
    def identity(self) -> Mapping[str, object]:
        """Return the key of a record of the file: its path, and its inode, by which a replaced file is noticed."""
        return {"part": str(self.path.absolute()), "inode": os.fstat(self._fd).st_ino}

    def anew(self) -> None:
        """Begin with a new file, in place of the one that an earlier download has left."""
        try:
            if self._is_there(self._fd):
                self.path.unlink()
            os.close(self._fd)
            self._fd = -1
            self.is_earlier = False
            self._fd = self._create(continues=False)
            take_over(self._fd, self.final)
        except OSError as e:
            raise self._failed(e) from e

    def keep(self) -> None:
        """Close the file, and leave it for the next download, with what was written to it on stable storage."""
        try:
            if self._fd >= 0:
                os.fsync(self._fd)
        except OSError as e:
            raise self._failed(e) from e
        finally:
            self._close()

    def leave(self) -> None:
        """Close the file of an earlier download, as it is, or remove a new one."""
        if self.is_earlier:
            self._close()
        else:
            self.remove()

    def truncate(self, size: int) -> None:
        """Set the size of the file, in bytes."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as e:
            raise self._failed(e) from e

    def write(self, data: bytes) -> None:
        """Append data."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as e:
            raise self._failed(e) from e

    def publish(self) -> None:
        """Rename the file, and sync it and its directory, so that a crash leaves either none or the complete file."""
        try:
            take_over(self._fd, self.final)  # once more, because that file may have been replaced or changed
            os.fsync(self._fd)
            self.path.replace(self.final)
            os.fsync(self._directory)
        except OSError as e:
            raise LocalError(f"can't write {self.final}: {e.strerror}") from e
        self._close()

    def remove(self) -> None:
        """Remove the file, unless it was renamed."""
        try:
            if self._fd >= 0 and self._is_there(self._fd):
                self.path.unlink()
        except OSError as e:
            raise LocalError(f"can't remove {self.path}: {e.strerror}") from e
        finally:
            self._close()

    def _require_writable(self, path: Path) -> None:
        """Open the file that will be replaced, by the given name, as a write would. Raises OSError, LocalError.

        So the kernel refuses links that are a trap (protected_symlinks of proc_sys_fs(5)).
        """
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if not os.path.samestat(os.fstat(fd), os.stat(self.final)):
                raise LocalError(f"{path} was changed meanwhile: try again")
        finally:
            os.close(fd)

    def _create(self, *, continues: bool) -> int:
        """Return a new file, or an earlier one, locked. Raises OSError, LocalError."""
        try:
            return self._take_or_create(continues=continues)
        except OSError as e:
            if e.errno != errno.ENAMETOOLONG:
                raise
        # Try which names the file system takes: pathconf(3) of some counts the bytes of the longest characters.
        digest = hashlib.sha256(os.fsencode(self.final.name)).hexdigest()[:DIGITS]
        self.path = self.final.with_name(digest + SUFFIX)
        return self._take_or_create(continues=continues)

    def _take_or_create(self, *, continues: bool) -> int:
        """Return a file that is left, unless somebody may have it open who must not read it, or else a new one."""
        mode = 0o600 if self.final.exists() else 0o666
        for _ in range(2):
            with contextlib.suppress(FileExistsError):
                return self._locked(os.O_CREAT | os.O_EXCL, mode)
            with contextlib.suppress(FileNotFoundError):  # another download has completed it
                left = self._locked(os.O_NOFOLLOW | os.O_NONBLOCK)
                with contextlib.ExitStack() as stack:
                    stack.callback(os.close, left)
                    if continues and admits_no_more(left, self.final):
                        self.is_earlier = True
                        stack.pop_all()
                        return left
                    self.path.unlink()
        raise self._in_use()

    def _locked(self, flags: int, mode: int = 0) -> int:
        """Open and lock the file. Raises OSError, LocalError."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | flags, mode)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise self._in_use() from e
            except OSError:  # the file system has no locks
                if flags & os.O_CREAT and self._is_there(fd):
                    self.path.unlink()
                raise
            # The former owner of the lock may have renamed or removed the file since it was opened here.
            if not self._is_there(fd):
                raise self._in_use()
            stack.pop_all()
        return fd

    def _in_use(self) -> LocalError:
        return LocalError(f"{self.path} is being written by another download")

    def _is_there(self, fd: int) -> bool:
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        for fd in (self._fd, self._directory):
            if fd >= 0:
                os.close(fd)
        self._fd = self._directory = -1

    def _failed(self, error: OSError) -> LocalError:
        return LocalError(f"can't write {os.fsdecode(error.filename or self.path)}: {error.strerror}")
