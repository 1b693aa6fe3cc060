# SPDX-License-Identifier: Apache-2.0
"""Standard input, output and error of the commands.

What cannot be written there changes nothing of what a command does: the disk below its log may be full, its reader may
be gone, its caller may have closed it. A command whose output is all that it does ends, and its status tells it.
"""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TextIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDIN, STDOUT, STDERR = range(3)
#: Seconds that what need not be read waits for its reader: a busy one misses nothing, and a transfer is not held up.
PATIENCE = 0.1


class Descriptor(io.FileIO):
    """A descriptor that stays open for its owner. Writes wait where another process has made it non-blocking."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)

    def write(self, data: "Buffer", /) -> int:
        """Write some bytes, and return their number. Raises OSError."""
        while (count := cast("int | None", super().write(data))) is None:
            select.select([], [self], [])
        return count


class Output(Descriptor):
    """A descriptor whose writes do not fail: what cannot be written is dropped.

    failure: the first reason. is_result: the output is what the command is for, so that one write raises it. waits: a
    write waits for a reader that does not read; otherwise it is dropped after PATIENCE.
    """

    def __init__(self, fd: int, *, is_result: bool = False) -> None:
        super().__init__(fd)
        self.is_result = is_result
        self.waits = True
        self.failure: OSError | None = None

    def write(self, data: "Buffer", /) -> int:
        """Write some bytes, or drop all. Raises OSError, once, if it is the result."""
        # A pipe is ready if it has room for PIPE_BUF bytes (pipe(7)), which is more than any line.
        if not self.waits and not select.select([], [self], [], PATIENCE)[1]:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as e:
            if self.failure is None:
                self.failure = e
                if self.is_result:
                    raise
            return memoryview(data).nbytes


class Streams(NamedTuple):
    """Standard output and error of a command."""

    output: Output
    errors: Output

    def wait(self, *, waits: bool) -> None:
        """Set whether writes wait for readers that do not read."""
        self.output.waits = self.errors.waits = waits


def run(program: str, command: Callable[[Streams], int], *, lost: int) -> int:
    """Run a command with such streams, and return its exit status.

    command: may tell of its standard output that it is no result. lost: the status for a result that could not be
    written. Standard error tells why, unless the reader has gone, as `head` does. An exit of argparse is the end of the
    command.
    """
    with _in_place() as streams:
        output = streams.output
        try:
            status = command(streams)
            sys.stdout.flush()
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 0
            with contextlib.suppress(OSError):  # it is output.failure
                sys.stdout.flush()
        except OSError as e:
            if e is not output.failure:
                raise
            status = lost
        if output.failure is None:
            return status
        if output.failure.errno != errno.EPIPE:
            print(f"{program}: can't write standard output: {output.failure.strerror}", file=sys.stderr)
        return status or (lost if output.is_result else 0)


@contextlib.contextmanager
def _in_place() -> Iterator[Streams]:
    """Take the places of sys.stdin, sys.stdout and sys.stderr for a block, unless a program has put others there."""
    _open_closed()
    before = sys.stdin, sys.stdout, sys.stderr
    streams = Streams(Output(STDOUT, is_result=True), Output(STDERR))
    if sys.stdin is None:
        sys.stdin = open(STDIN, closefd=False)  # noqa: SIM115 - for its owner
    if _is_of(sys.stdout, STDOUT):
        sys.stdout = _text(streams.output, sys.stdout)
    if _is_of(sys.stderr, STDERR):
        sys.stderr = _text(streams.errors, sys.stderr, line_buffering=True)
    try:
        yield streams
    finally:
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open those that are closed: a file or socket that took the number would get what is meant for the stream.

    They fail as closed ones do, with EBADF: what is read cannot be read, what is written cannot be written.
    """
    for fd, way in (STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_RDONLY):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)  # the lowest number that is free (open(2))


def _is_of(stream: TextIO | None, fd: int) -> bool:
    """Tell whether a stream is the interpreter's own; None: its descriptor was closed."""
    try:
        return stream is None or stream.fileno() == fd
    except (OSError, ValueError):  # it has none
        return False


def _text(raw: Output, former: TextIO | None, *, line_buffering: bool = False) -> TextIO:
    """Return a stream of text like the former one. What its encoding does not have is escaped."""
    errors = former.errors if former is not None else None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        former.encoding if former is not None else None,
        "backslashreplace" if errors in (None, "strict") else errors,
        line_buffering=line_buffering or (former is not None and former.isatty()),
    )
