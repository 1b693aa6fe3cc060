# SPDX-License-Identifier: Apache-2.0
"""A temporary file for data that comes in order and has to be read in any order. It has holes in place of zeros."""

import errno
import os
import tempfile
from pathlib import Path

from ioutil_ext import is_zero

from ...commands.amounts import human
from ...units import KiB, MiB
from ..errors import LocalError
from .stream import Reader

#: Bytes that are read at a time. If all are zeros, they become a hole.
PIECE = 4 * MiB
HOLE = 64 * KiB
#: The data of a file may take 1/SHARE of the free space of the directory.
SHARE = 2


class Spool:
    """A file without a name, in TMPDIR or /tmp, which ends when nobody has it open. Raises LocalError.

    By `path`, others can open it while it is open here.
    """

    def __init__(self, reader: Reader, name: str) -> None:
        self._name = name
        try:
            self._directory = tempfile.gettempdir()
        except OSError as e:
            raise LocalError(f"can't make a temporary file: {e.strerror}") from e
        try:
            self._fd = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise LocalError(f"can't make a temporary file in {self._directory}: {e.strerror}") from e
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._fd}")
        try:
            self._fill(reader)
        except OSError as e:
            self.close()
            raise (
                self._no_room()
                if e.errno == errno.ENOSPC
                else LocalError(f"can't write a temporary file in {self._directory}: {e.strerror}")
            ) from e
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _fill(self, reader: Reader) -> None:
        status = os.statvfs(self._directory)
        left, position = status.f_bavail * status.f_frsize // SHARE, 0
        while data := reader.read(PIECE):
            view = memoryview(data)
            for start in range(0, len(view), HOLE):
                piece = view[start : start + HOLE]
                if is_zero(piece):
                    continue
                left -= len(piece)
                if left < 0:
                    raise self._no_room()
                written = 0
                while written < len(piece):
                    written += os.pwrite(self._fd, piece[written:], position + start + written)
            position += len(view)
        os.ftruncate(self._fd, position)

    def _no_room(self) -> LocalError:
        status = os.statvfs(self._directory)
        free = human(status.f_bavail * status.f_frsize)
        return LocalError(
            f"{self._name} has to be written to a temporary file, which may take half of what was free in "
            f"{self._directory}, where {free} are left: TMPDIR=DIR names another directory"
        )
