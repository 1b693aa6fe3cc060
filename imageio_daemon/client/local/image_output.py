# SPDX-License-Identifier: Apache-2.0
"""Standard output as the target of an image, whose reader may pause for as long as it likes."""

import contextlib
import io
import os
import select
import socket
import stat
from typing import TYPE_CHECKING

from ..errors import Stopped

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ImageOutput(io.FileIO):
    """A descriptor that stays open for its owner. stop() wakes a thread that waits for the reader of a pipe or socket.

    For that no write may block, but O_NONBLOCK would change the descriptors of all programs that share this pipe.
    """

    def __init__(self, fd: int) -> None:
        self._woken, self._wake = os.pipe()
        mode = os.fstat(fd).st_mode
        super().__init__(_reopened(fd) if stat.S_ISFIFO(mode) else os.dup(fd), "w")
        self._socket = socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(mode) else None

    def write(self, data: "Buffer", /) -> int:
        """Write some bytes, and return their number. Raises OSError, Stopped."""
        while True:
            self._wait()
            with contextlib.suppress(BlockingIOError):
                count = self._socket.send(data, socket.MSG_DONTWAIT) if self._socket else super().write(data)
                if count is not None:  # None: a pipe has no room yet
                    return count

    def stop(self) -> None:
        """Make waiting and later writes raise Stopped."""
        os.write(self._wake, b"x")

    def close(self) -> None:
        """Close what was opened here. Later calls do nothing."""
        if not self.closed:
            for fd in (self._woken, self._wake):
                os.close(fd)
            if self._socket:
                self._socket.close()
        super().close()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        poll.register(self._woken, select.POLLIN)
        if self._woken in dict(poll.poll()):
            raise Stopped("stopped")


def _reopened(fd: int) -> int:
    """Return a descriptor of the same pipe that does not block, or one that does if that cannot be opened.

    A pipe of another user can't be opened, nor one without a reader.
    """
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.dup(fd)
