# SPDX-License-Identifier: Apache-2.0
"""Detection of peers that make no progress because they are silent, stop sending, or do not read."""

import asyncio
import fcntl
import struct
from collections.abc import Callable

#: ioctl(2): bytes in the socket's send queue (linux/sockios.h, tcp(7), unix(7)).
SIOCOUTQ = 0x5411
#: Checks of the transport in one timeout.
CHECKS = 4
#: Least rate of a body, in bytes per second over one timeout. Otherwise a client that sends one byte in each timeout
#: would keep its buffer for ever. Lanes have the same rate: lane/receive.c.
MIN_BODY_RATE = 2


class Watchdog:
    """Call `timed_out` if the connection waits for the peer, and the peer makes no progress for `timeout` seconds.

    The connection waits for the peer if `peers_turn` says so, and while writing is paused. In a pause, bytes that leave
    the send queue are progress, too: the kernel may hold several MB, so a slow reader seldom resumes writing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        peers_turn: Callable[[], bool],
        timed_out: Callable[[], object],
    ) -> None:
        self._timeout = timeout
        #: Whether a task waits for bytes of a body.
        self.reading = False
        self._brought = 0  # bytes of a body since the last progress
        self._stopped = 0.0  # when the last wait for bytes of a body has ended; the time after that does not count
        self._loop = loop
        self._peers_turn = peers_turn
        self._timed_out: Callable[[], object] = timed_out
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._writing_paused = False
        self._unsent = (0, 0)

    @property
    def timeout(self) -> float:
        """Return the seconds without progress after which `timed_out` is called."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float) -> None:
        if timeout != self._timeout:
            self._timeout = timeout
            if self._timer is not None:
                self._timer.cancel()
                self._schedule()

    def start(self, transport: asyncio.Transport) -> None:
        """Start the checks."""
        self._transport = transport
        self.progress()
        self._schedule()

    def stop(self) -> None:
        """Stop the checks, and drop the references to the connection.

        Otherwise a reference cycle would keep the connection's memory until the garbage collector runs.
        """
        self._transport = None
        self._peers_turn = self._timed_out = _nobody
        if self._timer is not None:
            self._timer.cancel()

    def progress(self) -> None:
        """Restart the timeout. Call this when the peer made progress, or when the connection begins to wait for it."""
        self._since = self._stopped = self._loop.time()
        self._brought = 0

    def received(self, count: int) -> None:
        """Count bytes of a body. They are progress at MIN_BODY_RATE or faster."""
        self._brought += count
        if self._brought >= MIN_BODY_RATE * self._timeout:
            self.progress()

    def wait_for_body(self, *, waiting: bool) -> None:
        """Note whether a task waits for bytes of a body. Time in which none waits does not count."""
        self.reading = waiting
        now = self._loop.time()
        if waiting:
            self._since += now - self._stopped
        self._stopped = now

    def writing_paused(self, *, paused: bool) -> None:
        """Note whether writing is paused until the peer reads."""
        self._writing_paused = paused
        self.progress()

    def _schedule(self) -> None:
        now = self._loop.time()
        step = min(self._since + self._timeout - now, self._timeout / CHECKS)
        self._timer = self._loop.call_later(max(step, 0.001), self._check)

    def _check(self) -> None:
        if not (self._writing_paused or self._peers_turn()) or self._some_left():
            self.progress()
        if self._loop.time() - self._since >= self._timeout:
            self._timed_out()
        if self._transport is not None:
            self._schedule()

    def _some_left(self) -> bool:
        """Return whether the bytes to send have changed since the last check."""
        before, self._unsent = self._unsent, unsent(self._transport) if self._transport else (0, 0)
        return any(self._unsent) and self._unsent != before


def _nobody() -> bool:
    return False


def unsent(transport: asyncio.Transport) -> tuple[int, int]:
    """Return the bytes to send in the transport and in the kernel's send queue, both 0 if the socket is closed."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0, 0
    try:
        queued = fcntl.ioctl(sock.fileno(), SIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0, 0  # the descriptor is closed
    return transport.get_write_buffer_size(), int(struct.unpack("i", queued)[0])
