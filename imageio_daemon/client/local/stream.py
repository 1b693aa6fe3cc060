# SPDX-License-Identifier: Apache-2.0
"""Sources that are read once, in order: standard input, decompressed data, members of archives that are streams."""

import io
import os
import re
import select
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, TypeAlias, cast

from ...image.blockhash import new_hash
from ...image.extents import Extent
from ...units import MAX_OFFSET, MiB
from ..errors import ChecksumMismatch, LocalError, Stopped, Usage
from ..fetched import Fetched
from .source import changed, identity, open_image
from .turns import Turns

#: Algorithms of published digests.
PUBLISHED = ("sha256", "sha384", "sha512", "sha1", "md5")


class Reader(Protocol):
    """Bytes in order."""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises LocalError, Stopped."""


#: A function that is called while an image is opened, with the bytes read of its file, and the file's size, if known.
Watch: TypeAlias = Callable[[int, int | None], None]


def unwatched(read: int, of: int | None) -> None:
    """Do nothing."""


#: Bytes that are read at a time after the end of the image.
CHECKED = 1 * MiB


class ExpectedDigest:
    """The published digest of a file, as `sha256:HEX`, to compare its bytes with. Raises Usage for any other text."""

    def __init__(self, told: str) -> None:
        algorithm, _, self._digest = told.partition(":")
        if not re.fullmatch("[0-9a-fA-F]+", self._digest) or algorithm not in PUBLISHED:
            raise Usage(f"what is expected must look like sha256:HEX, or have {', '.join(PUBLISHED[1:])} in its place")
        try:
            self._state = new_hash(algorithm)
        except ValueError as e:
            raise Usage(f"{algorithm} is not an algorithm of this host") from e
        if len(self._digest) != 2 * len(self._state.digest()):
            raise Usage(f"a digest of {algorithm} has {2 * len(self._state.digest())} digits")

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._state.update(data)

    def require(self, name: str) -> None:
        """Raise ChecksumMismatch if the bytes have another digest. `name` is the file's name in messages."""
        if (found := self._state.hexdigest()) != self._digest.lower():
            raise ChecksumMismatch(f"{name} has the digest {found}, and not {self._digest}, which was expected")


class Input:
    """The bytes of a stream or of a file. stop() wakes a thread that waits for them.

    `watch` is called with each read until the image is open, because much may have to be read before. `expect` is the
    digest of all bytes.
    """

    def __init__(
        self,
        stream: BinaryIO | Fetched,
        path: Path | None = None,
        watch: Watch = unwatched,
        expect: ExpectedDigest | None = None,
    ) -> None:
        self.watch = watch
        self.path = path
        #: The name in messages, and the number of bytes of the file, if it is known.
        self.name = str(path) if path else "the input"
        self.size: int | None = None
        if isinstance(stream, Fetched):
            self.name, self.size = stream.name, stream.size
        elif path:
            self.size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
        self._stream: Any = stream
        self._expect = expect
        self._position = 0
        self._woken, self._wake = os.pipe()
        self._opened = self._identity()

    @classmethod
    def of_file(cls, path: Path, watch: Watch = unwatched, expect: ExpectedDigest | None = None) -> Self:
        """Open a file or block device. Raises LocalError."""
        return cls(os.fdopen(open_image(path), "rb", buffering=0), path, watch, expect)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises LocalError, and Stopped if the file is unbuffered."""
        try:
            if isinstance(self._stream, io.FileIO):
                self._wait()
            while (data := cast("bytes | None", self._stream.read(size))) is None:
                self._wait()  # another process has made the file non-blocking
        except (OSError, EOFError) as e:
            raise LocalError(f"can't read {self.name}: {getattr(e, 'strerror', None) or e}") from e
        self._position += len(data)
        if self._expect is not None:
            self._expect.add(data)
        self.watch(self._position, self.size)
        return data

    def check(self) -> None:
        """Raise LocalError if size or mtime of the file have changed, ChecksumMismatch if its digest is another one."""
        if self._expect is not None:
            while self.read(CHECKED):  # the digest includes what follows the image
                pass
            self._expect.require(self.name)
            self._expect = None
        if self.path and self._identity() != self._opened:
            raise changed(self.path)

    def stop(self) -> None:
        """Make waiting and later reads raise Stopped."""
        os.write(self._wake, b"x")
        if isinstance(self._stream, Fetched):
            self._stream.stop()

    def close(self) -> None:
        """Close the file. A stream stays open for its owner."""
        os.close(self._woken)
        os.close(self._wake)
        if self.path:
            self._stream.close()

    def _identity(self) -> Mapping[str, object] | None:
        return identity(self._stream.fileno()) if self.path else None

    def _wait(self) -> None:
        poll = select.poll()
        for fd in (self._stream.fileno(), self._woken):
            poll.register(fd, select.POLLIN)
        if self._woken in dict(poll.poll()):
            raise Stopped("stopped")


class Ahead:
    """A reader whose next bytes can be seen before they are read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer if the reader ends before."""
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
    """An image that is read once. Raises LocalError for a size that no image can have.

    It must have exactly `size` bytes. `told` names what has claimed this size, for messages. `reader` decodes the
    input. It runs in the threads that send, one at a time: while one thread decompresses, the others send earlier
    bytes.
    """

    is_stream = True
    portion = 4 * MiB
    identity = None  # a state file is of no use: only the server's checksums can tell what was sent

    def __init__(self, source: Input, size: int, reader: Reader | None = None, told: str = "--size") -> None:
        if not 0 <= size <= MAX_OFFSET:
            raise LocalError(f"{source.name} can't have {size} bytes, as {told} says")
        self.size = size
        self._input = source
        self._reader = reader or source
        self._told = told
        self._ended = False
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
            if offset + len(buffer) == self.size:
                self._require_end()

    def check(self) -> None:
        """Raise LocalError if there are more bytes than `size`, or if the file has changed since it was opened."""
        if not self._ended:  # so far nothing was read of an image of 0 bytes
            self._require_end()
        self._input.check()

    def stop(self) -> None:
        """Wake threads that wait for their turn or for bytes."""
        self._turns.stop()
        self._input.stop()

    def close(self) -> None:
        """Close the input."""
        self._input.close()

    def _require_end(self) -> None:
        if self._reader.read(1):
            raise LocalError(
                f"{self._input.name} is longer than the {self.size} bytes that {self._told} says: "
                "say --size for all that comes"
            )
        self._ended = True
