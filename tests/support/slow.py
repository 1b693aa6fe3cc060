# SPDX-License-Identifier: Apache-2.0
"""A daemon on storage that is sometimes slow, and that records the calls.

The environment variable IMAGEIO_TEST_SLOW is JSON with `seed`, `calls` (the file to which the calls are appended), and
`writes_zeros` (whether the storage cannot zero, so that zeros are written). Each call has a line when it begins and one
when it ends: `+` or `-`, the time of the monotonic clock, inode, offset, length, and the operations that wrote the
units at its ends.
"""

import errno
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from imageio_daemon import cli
from tests.ioutil.syscall_table import real_fallocate, real_fdatasync, real_pwrite, replaced
from tests.support.eager import tell
from tests.support.stamps import UNIT, writers

#: How many units at each end of a write are recorded: the whole block that is written for an edge.
EDGE = 4096 // UNIT
#: The probabilities of delays, and the most seconds of each, the likeliest last.
DELAYS = ((0.05, 0.4), (0.2, 0.02))


class Slow:
    """Storage calls that wait before they take effect."""

    def __init__(self, seed: int, calls: str, *, writes_zeros: bool) -> None:
        self._choose = random.Random(seed)
        self._lock = threading.Lock()
        self._calls = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._writes_zeros = writes_zeros

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Write, later."""
        edges = {offset: buffer[: EDGE * UNIT], offset + max(0, len(buffer) - EDGE * UNIT): buffer[-EDGE * UNIT :]}
        seen = frozenset().union(
            *(w for at, data in edges.items() if at % UNIT == 0 for w in writers(bytes(data), at // UNIT))
        )
        call = f"{os.fstat(fd).st_ino} {offset} {len(buffer)} {','.join(map(str, sorted(seen)))}"
        with self._delayed(call):
            return real_pwrite(fd, buffer, offset)

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        """Zero, later, or refuse."""
        if self._writes_zeros:
            raise OSError(errno.EOPNOTSUPP, "no fallocate")
        call = f"{os.fstat(fd).st_ino} {offset} {length} 0"
        with self._delayed(call):
            real_fallocate(fd, mode, offset, length)

    def fdatasync(self, fd: int) -> None:
        """Flush, later."""
        time.sleep(self._delay())
        real_fdatasync(fd)

    @contextmanager
    def _delayed(self, call: str) -> Iterator[None]:
        self._tell("+", call)
        try:
            time.sleep(self._delay())
            yield
        finally:
            self._tell("-", call)

    def _delay(self) -> float:
        with self._lock:
            share, place = self._choose.random(), self._choose.random()
        for often, most in DELAYS:
            if share < often:
                return place * most
            share -= often
        return 0

    def _tell(self, what: str, call: str) -> None:
        os.write(self._calls, f"{what} {time.monotonic()} {call}\n".encode())


def main() -> int:
    """Run the daemon."""
    slow = Slow(**json.loads(os.environ["IMAGEIO_TEST_SLOW"]))
    tell()
    with replaced(pwrite=slow.pwrite, fallocate=slow.fallocate, fdatasync=slow.fdatasync):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
