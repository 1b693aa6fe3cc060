# SPDX-License-Identifier: Apache-2.0
"""Notice a peer that makes no progress: says nothing, stops sending, or does not read."""

import asyncio
import fcntl
import struct
from collections.abc import Callable

#: Bytes in the kernel that the peer has not taken (sockios.h, tcp(7), unix(7)).
SIOCOUTQ = 0x5411
#: How often in one timeout the transport is looked at.
CHECKS = 4
#: Bytes a second that a body must bring, over one timeout: a client that sends one each second would keep its buffer
#: for ever. Anything that is meant to arrive is faster.
MIN_RATE = 2


class Watchdog:
    """Call back when the peer, while it is its turn, does nothing for `timeout` seconds.

    Whose turn it is says `peers_turn`; while writing is paused, or after a close, it is the peer's too, and progress
    is bytes that leave: several MB may wait in the kernel, so that a slow reader lets us write only seldom.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        peers_turn: Callable[[], bool],
        timed_out: Callable[[], object],
    ) -> None:
        self._timeout = timeout
        #: Set while somebody waits for the peer's bytes.
        self.reading = False
        self._brought = 0  # bytes of a body since the last progress
        self._stopped = 0.0  # when the peer's clock was stopped, as it is while nobody waits for its bytes
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
        """Seconds without progress."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float) -> None:
        if timeout != self._timeout:
            self._timeout = timeout
            if self._timer is not None:
                self._timer.cancel()
                self._schedule()

    def start(self, transport: asyncio.Transport) -> None:
        """Begin to watch."""
        self._transport = transport
        self.progress()
        self._schedule()

    def stop(self) -> None:
        """Watch no more, and refer to nobody: a circle would keep the connection's memory until the collector runs."""
        self._transport = None
        self._peers_turn = self._timed_out = _nobody
        if self._timer is not None:
            self._timer.cancel()

    def progress(self) -> None:
        """Note that the peer did something, or that it is its turn from now on."""
        self._since = self._stopped = self._loop.time()
        self._brought = 0

    def received(self, count: int) -> None:
        """Note bytes of a body. A trickle is no progress."""
        self._brought += count
        if self._brought >= MIN_RATE * self._timeout:
            self.progress()

    def wait_for_body(self, *, waiting: bool) -> None:
        """Note whether somebody waits for bytes of a body. The time in between is not the peer's."""
        self.reading = waiting
        now = self._loop.time()
        if waiting:
            self._since += now - self._stopped
        self._stopped = now

    def writing_paused(self, *, paused: bool) -> None:
        """Note whether the peer has to take bytes before more are written."""
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
        """Tell whether bytes have left since the last look."""
        before, self._unsent = self._unsent, unsent(self._transport) if self._transport else (0, 0)
        return any(self._unsent) and self._unsent != before


def _nobody() -> bool:
    return False


def unsent(transport: asyncio.Transport) -> tuple[int, int]:
    """Return the bytes that wait in the transport, and in the kernel: 0 there means that nothing waits in between."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0, 0
    try:
        queued = fcntl.ioctl(sock.fileno(), SIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0, 0  # it is being closed
    return transport.get_write_buffer_size(), int(struct.unpack("i", queued)[0])
