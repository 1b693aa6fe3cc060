# SPDX-License-Identifier: Apache-2.0
"""The file NAME.part, which is renamed to NAME when it is complete."""

import fcntl
import os
from pathlib import Path

from ..errors import LocalError


class PartFile:
    """An empty file beside `path`, locked against other downloads (flock(2)). Methods raise LocalError."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".part")
        self._final = path
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        except OSError as e:
            raise self._failed(e) from e
        try:
            self._lock()
            os.ftruncate(self._fd, 0)
        except OSError as e:
            self._close()
            raise self._failed(e) from e
        except LocalError:
            self._close()
            raise

    def truncate(self, size: int) -> None:
        """Set the size of the file, in bytes."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as e:
            raise self._failed(e) from e

    def publish(self) -> None:
        """Rename the file, and sync it and its directory, so that a crash leaves either none or the complete file."""
        try:
            os.fsync(self._fd)
            self.path.replace(self._final)
            directory = os.open(self._final.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as e:
            raise LocalError(f"can't write {self._final}: {e.strerror}") from e
        self._close()

    def remove(self) -> None:
        """Remove the file, unless it was renamed."""
        if self._fd >= 0 and self._is_there():
            self.path.unlink()
        self._close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise LocalError(f"{self.path} is being written by another download") from e
        # The former owner of the lock may have renamed or removed the file since it was opened here.
        if not self._is_there():
            raise LocalError(f"{self.path} was written by another download: try again")

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _failed(self, error: OSError) -> LocalError:
        return LocalError(f"can't write {self.path}: {error.strerror}")
