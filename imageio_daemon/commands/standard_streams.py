# SPDX-License-Identifier: Apache-2.0
"""Standard input, output and error of the commands.

A command goes on if it cannot write to them: the disk may be full, the reader gone, or the stream closed by the caller.
Only a command whose result is its output ends then, with a status that says so.
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
#: Seconds that a write which may be dropped waits for the reader. So a busy one misses nothing, and no transfer stops.
PATIENCE = 0.1


class Output(io.FileIO):
    """A descriptor that stays open for its owner. Writes do not fail: bytes that cannot be written are dropped.

    `failure` is the first error. `is_result` tells that the output is the purpose of the command, and then the first
    write that fails raises its error. `waits` tells that a write waits for a reader that does not read. Otherwise it is
    dropped after PATIENCE.
    """

    def __init__(self, fd: int, *, is_result: bool = False) -> None:
        super().__init__(fd, "w", closefd=False)
        self.is_result = is_result
        self.waits = True
        self.failure: OSError | None = None

    def write(self, data: "Buffer", /) -> int:
        """Write some bytes, or drop all. Raises OSError once if the output is the command's result."""
        # A pipe is ready if it has room for PIPE_BUF bytes (pipe(7)), which is more than any line.
        if not self.waits and not select.select([], [self], [], PATIENCE)[1]:
            return memoryview(data).nbytes
        try:
            return self._write(data)
        except OSError as e:
            if self.failure is None:
                self.failure = e
                if self.is_result:
                    raise
            return memoryview(data).nbytes

    def _write(self, data: "Buffer") -> int:
        """Write some bytes. This blocks, also if another process has made the descriptor non-blocking."""
        while (count := cast("int | None", super().write(data))) is None:
            select.select([], [self], [])
        return count


class Streams(NamedTuple):
    """Standard output and error of a command."""

    output: Output
    errors: Output

    def wait(self, *, waits: bool) -> None:
        """Set whether writes wait for readers that do not read."""
        self.output.waits = self.errors.waits = waits


def run(program: str, command: Callable[[Streams], int], *, lost: int) -> int:
    """Run a command with these streams, and return its exit status.

    The command may change `is_result` of its output. If a result cannot be written, the status is `lost`, and standard
    error says why, unless the reader has gone, as `head` does. If argparse exits, the command ends in the same way.
    """
    with _in_place() as streams:
        output = streams.output
        try:
            status = command(streams)
            sys.stdout.flush()
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 0
            with contextlib.suppress(OSError):  # output.failure has the error
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
    """Replace sys.stdin, sys.stdout and sys.stderr for a block, unless a program has replaced them already."""
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
    """Open closed standard descriptors, so that no file or socket gets their number, and bytes meant for the stream.

    They are opened for the wrong direction, so their use fails with EBADF, as that of closed ones.
    """
    for fd, way in (STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_RDONLY):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)  # the lowest number that is free (open(2))


def _is_of(stream: TextIO | None, fd: int) -> bool:
    """Return whether a stream is the interpreter's own, which is None if its descriptor was closed."""
    try:
        return stream is None or stream.fileno() == fd
    except (OSError, ValueError):  # it has no descriptor
        return False


def _text(raw: Output, former: TextIO | None, *, line_buffering: bool = False) -> TextIO:
    """Return a stream of text like the former one. Characters that its encoding lacks are escaped."""
    errors = former.errors if former is not None else None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        former.encoding if former is not None else None,
        "backslashreplace" if errors in (None, "strict") else errors,
        line_buffering=line_buffering or (former is not None and former.isatty()),
    )
