# SPDX-License-Identifier: Apache-2.0
"""The limit on the rate of a transfer, for all of its connections and both directions together."""

import math
import socket
import sys
import threading
import time

from ...units import KiB
from ..stopping import Stop

#: The lowest limit, in bytes per second. With it, each of 64 connections still moves something every 16 s. Servers cut
#: connections that make no progress for a minute.
LEAST_RATE = 4 * KiB
#: A step has the bytes of this many seconds, which are sent at once. They delay others on the same link by as long,
#: which is less than people notice in a call. A step has LEAST_STEP bytes or more, because each costs a system call.
STEP = 0.02
LEAST_STEP = 1 * KiB
#: Most bytes of a step. 256 KiB is about what a socket takes.
MOST_STEP = 256 * KiB
#: Seconds whose bytes may be sent late and at once, so that a thread that wakes late loses nothing. Over 10 s, the rate
#: is at most 1 % higher.
BURST = 0.1
#: The kernel receives ahead the bytes of this many seconds, if that is less than it would take by itself. At 64 KiB/s
#: it took 135 KiB at once, every 2 s; with this, it takes 15 to 30 KiB.
AHEAD = 0.25
LEAST_AHEAD = 8 * KiB
MOST_AHEAD = 64 * KiB
#: Bytes per second for which one more connection is used. With fewer connections, fewer bytes are under way, which an
#: interruption loses.
SHARE = 256 * KiB


class Pace:
    """The rate of all connections together, which share it in the order of calls. Thread-safe.

    `rate` is in bytes per second, or None for no limit. `step` is the number of bytes to send at once, and `ahead` the
    number that the kernel may receive ahead.
    """

    def __init__(self, rate: int | None = None) -> None:
        self.is_limited = rate is not None
        self._rate = math.inf if rate is None else rate
        self.step = sys.maxsize if rate is None else min(max(int(rate * STEP), LEAST_STEP), MOST_STEP)
        self.ahead = sys.maxsize if rate is None else int(rate * AHEAD)
        self._lock = threading.Lock()
        self._due = 0.0  # when all taken bytes are granted

    def connections(self, most: int) -> int:
        """Return how many connections, at most `most`, are of use at this rate."""
        return max(1, int(min(most, self._rate // SHARE)))

    def take(self, count: int) -> tuple[float, float]:
        """Take bytes. Return when all earlier bytes are granted, and when these are, as times of time.monotonic()."""
        with self._lock:
            before = max(self._due, time.monotonic() - BURST)
            self._due = before + count / self._rate
            return before, self._due


class Paced:
    """The pace of one connection. `stop` ends waits.

    It counts heads and bodies as plain bytes of TLS, and compressed bodies as they are sent.
    """

    def __init__(self, pace: Pace, stop: Stop) -> None:
        self._pace = pace
        self._stop = stop

    @property
    def step(self) -> int:
        """Return how many bytes to send or receive at once."""
        return self._pace.step

    def limit(self, sock: socket.socket) -> None:
        """If the rate is low, have the kernel receive little ahead (SO_RCVBUF of socket(7))."""
        if self._pace.is_limited and self._pace.ahead <= MOST_AHEAD and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, max(self._pace.ahead, LEAST_AHEAD))

    def send(self, count: int) -> int:
        """Wait until some of `count` bytes may be sent, and return how many, at most a step. Raises Stopped."""
        if not self._pace.is_limited:
            return count
        count = min(count, self.step)
        before, _ = self._pace.take(count)
        self._wait(before)
        return count

    def received(self, count: int) -> None:
        """Count received bytes, and wait until more may be received. Raises Stopped."""
        if self._pace.is_limited:
            _, after = self._pace.take(count)
            self._wait(after)

    def _wait(self, until: float) -> None:
        if (left := until - time.monotonic()) > 0:
            self._stop.sleep(left)


#: The pace without a limit.
UNLIMITED = Pace()
