# SPDX-License-Identifier: Apache-2.0
"""Sources that are read once, in order: standard input, what is decompressed, members of archives on the way."""

import io
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from ...image.extents import Extent
from ...units import MiB
from ..errors import LocalError, Stopped
from .source import changed, identity, open_image
from .turns import Turns


class Reader(Protocol):
    """Bytes in order."""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises LocalError, Stopped."""


class Input:
    """The bytes of a stream, or of a file. A thread that waits for them is woken by stop()."""

    def __init__(self, stream: BinaryIO, path: Path | None = None) -> None:
        self.name = str(path) if path else "the input"
        self._stream = stream
        self.path = path
        self._woken, self._wake = os.pipe()
        self._opened = identity(stream.fileno()) if path else None

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Open a file or block device. Raises LocalError."""
        return cls(os.fdopen(open_image(path), "rb", buffering=0), path)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises LocalError, and Stopped if its file is unbuffered."""
        try:
            if isinstance(self._stream, io.FileIO):
                self._wait()
            return self._stream.read(size)
        except (OSError, EOFError) as e:
            raise LocalError(f"can't read {self.name}: {getattr(e, 'strerror', None) or e}") from e

    def check(self) -> None:
        """Raise LocalError if size or mtime of the file have changed."""
        if self.path and identity(self._stream.fileno()) != self._opened:
            raise changed(self.path)

    def stop(self) -> None:
        """Make a read that waits raise Stopped, and those that follow."""
        os.write(self._wake, b"x")

    def close(self) -> None:
        """Close the file; a stream stays open for its owner."""
        os.close(self._woken)
        os.close(self._wake)
        if self.path:
            self._stream.close()

    def _wait(self) -> None:
        poll = select.poll()
        for fd in (self._stream.fileno(), self._woken):
            poll.register(fd, select.POLLIN)
        if self._woken in dict(poll.poll()):
            raise Stopped("stopped")


class Ahead:
    """A reader whose first bytes can be looked at before they are read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer if it ends before."""
        while len(self._head) < size and (more := self._reader.read(size - len(self._head))):
            self._head += more
        return self._head[:size]

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end."""
        if not self._head:
            return self._reader.read(size)
        data, self._head = self._head[:size], self._head[size:]
        return data


class StreamSource:
    """An image that is read once. size: bytes, which it must have exactly, as `told` says.

    reader: what is made of the input on the way. It works in the turns of the threads that send: while one thread
    decompresses, the others send what came before.
    """

    is_stream = True
    portion = 4 * MiB
    identity = None  # a state file is of no use: what was sent is compared by the server's checksums, or not at all

    def __init__(self, source: Input, size: int, reader: Reader | None = None, told: str = "--size") -> None:
        self.size = size
        self._input = source
        self._reader = reader or source
        self._told = told
        self._turns = Turns()

    def extents(self) -> Iterator[Extent]:
        """Yield one extent of data."""
        if self.size:
            yield Extent(0, self.size)

    def read(self, offset: int, buffer: memoryview) -> None:
        """Wait until all bytes before offset were read, and fill the buffer. Raises LocalError, Stopped."""
        with self._turns.turn(offset, len(buffer)):
            filled = 0
            while filled < len(buffer):
                data = self._reader.read(len(buffer) - filled)
                if not data:
                    ended = offset + filled
                    raise LocalError(
                        f"{self._input.name} ended at byte {ended}, and not at {self.size} as {self._told} says"
                    )
                buffer[filled : filled + len(data)] = data
                filled += len(data)
            if offset + len(buffer) == self.size and self._reader.read(1):
                raise LocalError(f"{self._input.name} is longer than the {self.size} bytes that {self._told} says")

    def check(self) -> None:
        """Raise LocalError if the file is known to have changed since it was opened."""
        self._input.check()

    def stop(self) -> None:
        """Wake threads that wait for their turn or for bytes."""
        self._turns.stop()
        self._input.stop()

    def close(self) -> None:
        """Close the input."""
        self._input.close()
