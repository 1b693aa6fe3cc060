# SPDX-License-Identifier: Apache-2.0
"""Changes of an image on Ceph since a snapshot, by the program `rbd diff`.

The program lists whole objects, of 4 MiB by default. If the image has the feature fast-diff, this takes milliseconds
for an image of any size. The answer is one JSON document, which is parsed while it arrives.
"""

import errno
import io
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing
from typing import cast

from ...errors import NotFound, StorageError, Unavailable, Unusable
from ...image.extents import Extent, ExtentList, ExtentStream
from ...runtime import descriptors
from ...runtime.background import in_thread, surely
from ...units import MAX_OFFSET, KiB
from ..operation import Operation
from .process import NO_PROGRAM, environment

#: Most processes at a time. Each has all of its answer in memory, some 100 bytes for an object.
MOST = 8
#: Most processes for one image, so that one ticket leaves some for others. A backup needs one, and two if it asks
#: again.
MOST_OF_IMAGE = 2
#: Bytes that are parsed at a time: about a thousand extents.
PIECE = 64 * KiB
#: Most bytes of the text of one extent.
MAX_TEXT = 1 * KiB
#: Most bytes of the program's messages that are read.
MAX_MESSAGES = 4 * KiB
#: The program's message if it finds the image but cannot compare it.
DIFF_ERROR = "diff error"


def command(image: Sequence[str], since: str) -> Sequence[str]:
    """Return the command that compares an image with its snapshot `since`. `image` has the options that name it."""
    return ["rbd", "diff", "--format=json", "--whole-object", f"--from-snap={since}", *image]


async def extents(command: Sequence[str], image: str, op: Operation, offset: int, end: int) -> ExtentStream:
    """Yield the extents of a range, dirty or not, from the command's answer. `image` is the image's name in logs.

    Raises StorageError, NotFound if there is no such snapshot, and Unavailable if too many processes run. Closing this
    early kills the process.
    """
    op.retain()
    try:
        process = await in_thread(lambda: _Process(command, image), _Process.end)
        try:
            async with aclosing(_told(process, offset, end)) as lists:
                async for found in lists:
                    yield found
        finally:
            await surely(lambda: in_thread(process.end))
    finally:
        op.release()


async def _told(process: "_Process", offset: int, end: int) -> ExtentStream:
    """Yield extents that cover the whole range."""
    parser, position = DiffParser(), offset
    while data := await in_thread(process.read):
        found = ExtentList.of((), position)
        try:
            for start, stop, exists in parser.feed(data):
                first, last = max(start, position), min(stop, end)
                if first < last:
                    _skip(found, first)
                    found.append(Extent(first, last - first, zero=not exists, dirty=True))
        except (ValueError, TypeError, KeyError) as e:
            raise process.failure(f"({e!r})") from None
        position = found.end
        if found:
            yield found
    await in_thread(process.succeed)
    if not parser.is_complete:
        raise process.failure("(its answer ends early)")
    found = ExtentList.of((), position)
    _skip(found, end)
    if found:
        yield found


def _skip(found: ExtentList, offset: int) -> None:
    """Add an extent without changes, up to an offset."""
    if found.end < offset:
        found.append(Extent(found.end, offset - found.end))


class DiffParser:
    """Parse the document in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._position = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bool]]:
        """Yield start, end and whether there is data, for each complete extent in order.

        Raises ValueError, TypeError or KeyError if the document is malformed, or its extents are not in order.
        """
        *texts, self._rest = (self._rest + data).split(b"}")
        if any(len(text) > MAX_TEXT for text in (*texts, self._rest)):
            raise ValueError("the text of an extent is too long")
        for text in texts:
            told = json.loads(text.lstrip(b"[, \r\n\t") + b"}")
            yield self._extent(told["offset"], told["length"], told["exists"])

    @property
    def is_complete(self) -> bool:
        """Return whether the document has ended."""
        return self._rest.strip() in (b"]", b"[]")

    def _extent(self, start: object, length: object, exists: object) -> tuple[int, int, bool]:
        if type(start) is not int or type(length) is not int:
            raise TypeError("an extent without numbers")
        if not self._position <= start < start + length <= MAX_OFFSET:
            raise ValueError("an extent that is not behind the one before it")
        self._position = start + length
        return start, self._position, {"true": True, "false": False}[str(exists).lower()]


class _Places:
    """The places of processes: MOST in all, and MOST_OF_IMAGE for one image. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, image: str) -> None:
        """Take a place. Raises Unavailable."""
        with self._lock:
            if self._taken.total() >= MOST or self._taken[image] >= MOST_OF_IMAGE:
                raise Unavailable("Too many requests for dirty extents")
            self._taken[image] += 1

    def leave(self, image: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken -= Counter([image])  # this drops counts of 0


_places = _Places()


class _Process:
    """A process of rbd(8). Methods block. Raises Unavailable, and StorageError if it cannot be started."""

    def __init__(self, command: Sequence[str], image: str) -> None:
        self._image = image
        with ExitStack() as held:
            _places.take(image)
            held.callback(_places.leave, image)
            if shutil.which(command[0]) is None:
                raise Unusable(NO_PROGRAM, f"compare {image}", command[0], "(is ceph-common installed?)")
            self._errors = held.enter_context(tempfile.TemporaryFile())
            try:
                self._process = subprocess.Popen(  # noqa: S603 - no shell, and names are in no option but their own
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env=environment(),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as e:
                raise StorageError(e.errno or errno.EIO, f"compare {image}", command[0]) from None
            descriptors.restore_limit(self._process.pid)
            held.push(self._process)
            self._output = cast(io.BufferedReader, self._process.stdout)
            self._held = held.pop_all()

    def read(self) -> bytes:
        """Return a piece of its output, empty at the end."""
        return self._output.read1(PIECE)  # if end() is called in another thread, it closes the pipe after this

    def succeed(self) -> None:
        """Wait for its end. Raises NotFound if there is no such snapshot, and StorageError for other failures."""
        status = self._process.wait()
        if not status:
            return
        said = " ".join(os.pread(self._errors.fileno(), MAX_MESSAGES, 0).decode(errors="replace").split())
        # The status of rbd is an errno. ENOENT is also the status if there is no key.
        if status == errno.ENOENT and DIFF_ERROR in said:
            raise NotFound("The image does not have the snapshot with which the ticket compares it")
        number = status if status in errno.errorcode else errno.EIO
        raise StorageError(number, f"compare {self._image}", "rbd", f"(status {status}: {said})")

    def failure(self, why: str) -> StorageError:
        """Return the error for a malformed answer."""
        return StorageError(errno.EPROTO, f"compare {self._image}", "rbd", why)

    def end(self) -> None:
        """Kill the process, if it has not ended, and release everything."""
        self._process.kill()
        self._held.close()
