# SPDX-License-Identifier: Apache-2.0
"""The limit on the rate of a transfer: one for all of its connections, and for both directions."""

import math
import socket
import sys
import threading
import time

from ...units import KiB
from ..stopping import Stop

#: Lowest limit, in bytes per second. Then each of 64 connections still moves something every 16 s, and servers cut
#: those off that stand still for a minute.
LEAST_RATE = 4 * KiB
#: Seconds of the rate that go at once: so long does a link that others use stand still for it, less than what people
#: notice in a call. Below LEAST_STEP a system call for each step costs more than it evens out.
STEP = 0.02
LEAST_STEP = 1 * KiB
#: Most bytes of a step. 256 KiB is about what a socket takes.
MOST_STEP = 256 * KiB
#: Seconds whose bytes may go later, at once: a thread that the system wakes late loses nothing. In 10 s the rate is at
#: most 1 % higher.
BURST = 0.1
#: Seconds of the rate that the kernel receives ahead, where that is less than it takes by itself. At 64 KiB/s it took
#: 135 KiB at once, every 2 s; now it takes 15 to 30 KiB.
AHEAD = 0.25
LEAST_AHEAD = 8 * KiB
MOST_AHEAD = 64 * KiB
#: Bytes per second from which another connection is of use: fewer connections make the same rate of fewer bytes under
#: way, which is what an interruption loses.
SHARE = 256 * KiB


class Pace:
    """The rate of all connections together, which share it in the order of calls. Thread-safe.

    rate: bytes per second; None: no limit. `step`: bytes that go at once. `ahead`: that the kernel may have received.
    """

    def __init__(self, rate: int | None = None) -> None:
        self.is_limited = rate is not None
        self._rate = math.inf if rate is None else rate
        self.step = sys.maxsize if rate is None else min(max(int(rate * STEP), LEAST_STEP), MOST_STEP)
        self.ahead = sys.maxsize if rate is None else int(rate * AHEAD)
        self._lock = threading.Lock()
        self._due = 0.0  # when all that was taken is granted

    def connections(self, most: int) -> int:
        """Return how many connections are of use at this rate, of `most`."""
        return max(1, int(min(most, self._rate // SHARE)))

    def take(self, count: int) -> tuple[float, float]:
        """Take bytes. Return when all that was taken before them is granted, and when they are (time.monotonic())."""
        with self._lock:
            before = max(self._due, time.monotonic() - BURST)
            self._due = before + count / self._rate
            return before, self._due


class Paced:
    """The pace of one connection.

    What goes counts as TLS gets it, and what comes as TLS gives it: heads and bodies, compressed ones as they are sent.
    stop: ends waits.
    """

    def __init__(self, pace: Pace, stop: Stop) -> None:
        self._pace = pace
        self._stop = stop

    @property
    def step(self) -> int:
        """Return how many bytes go or come at once."""
        return self._pace.step

    def limit(self, sock: socket.socket) -> None:
        """Let the kernel receive little ahead of what is taken (SO_RCVBUF of socket(7)), if the rate is low."""
        if self._pace.is_limited and self._pace.ahead <= MOST_AHEAD and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, max(self._pace.ahead, LEAST_AHEAD))

    def send(self, count: int) -> int:
        """Wait until some of `count` bytes may be sent, and return how many: a step at most. Raises Stopped."""
        if not self._pace.is_limited:
            return count
        count = min(count, self.step)
        before, _ = self._pace.take(count)
        self._wait(before)
        return count

    def received(self, count: int) -> None:
        """Wait until bytes, which have come, may be followed by others. Raises Stopped."""
        if self._pace.is_limited:
            _, after = self._pace.take(count)
            self._wait(after)

    def _wait(self, until: float) -> None:
        if (left := until - time.monotonic()) > 0:
            self._stop.sleep(left)


#: No limit.
UNLIMITED = Pace()
