# SPDX-License-Identifier: Apache-2.0
"""The state of a connection, and its end: at once, or in order, when the bytes that still come were discarded.

If a socket is closed while it has unread bytes, the kernel sends a reset, which overtakes the answer (RFC 9112 9.6). So
the rest of the body is read and discarded first.
"""

import asyncio
import enum

from ....errors import InvalidRequest
from ....net.watchdog import Watchdog
from ....units import MiB
from .handover import LaneHandover
from .incoming import Incoming
from .transport import ClientTransport

#: Most bytes and seconds of discarding. A client that sends for longer does not read the answer.
DISCARD_BYTES = 64 * MiB
DISCARD_SECONDS = 2.0


class State(enum.Enum):
    """The activity of a connection."""

    IDLE = "between requests"
    SERVING = "in a request"
    HANDED_OVER = "served by C, or waiting until its image is open or a lane is free"
    DISCARDING = "reading what nobody wants, before it closes"
    CLOSED = "closed, though the last bytes may be on their way"


class ConnectionLife:
    """The state of one connection, and its end.

    `reason` is for the log. It is `client` unless the server ends the connection.
    """

    def __init__(
        self, transport: ClientTransport, incoming: Incoming, watchdog: Watchdog, handover: LaneHandover
    ) -> None:
        self.state = State.IDLE
        self.reason = "client"
        self._transport = transport
        self._incoming = incoming
        self._watchdog = watchdog
        self._handover = handover
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None  # while bytes are discarded

    @property
    def ends(self) -> bool:
        """Return whether no further answer can be sent."""
        return self.state in (State.DISCARDING, State.CLOSED)

    def abort(self, reason: str) -> None:
        """Cut the connection. If a lane has the connection, the lane ends first."""
        self.reason = reason
        if self._handover.active:
            self._handover.abort()
        else:
            self._cut()

    def cut_off(self, reason: str) -> None:
        """Cut the connection without waiting for a lane, whose storage may hang."""
        self.abort(reason)
        self._cut()

    def close(self, reason: str) -> None:
        """Send all written bytes, discard what the client still sends, and close."""
        if self.ends:
            return
        self.reason = reason
        if self._incoming.unwanted:
            self._begin_discard()
        else:
            self.finish()

    def refuse(self, reason: str, answer: bytes) -> None:
        """Send an answer to a connection for which there is no place, and close."""
        self.reason = reason
        self._transport.write(answer)
        self._begin_discard()

    def finish(self) -> None:
        """Close as soon as all written bytes are sent."""
        self._stop_discarding()
        self.state = State.CLOSED
        self._watchdog.progress()
        self._transport.close()

    def discard(self, data: bytes) -> bool:
        """Discard received bytes if the connection is discarding. Return whether it is."""
        if self._timer is None:
            return False
        self._discarded += len(data)
        if self._ends_with(data):
            self.finish()
        elif self._discarded > DISCARD_BYTES:
            self._give_up()
        return True

    def lost(self) -> None:
        """Note that the connection is lost."""
        self.state = State.CLOSED
        self._stop_discarding()

    def _cut(self) -> None:
        self.state = State.CLOSED
        self._transport.abort()

    def _begin_discard(self) -> None:
        self.state = State.DISCARDING
        self._timer = asyncio.get_running_loop().call_later(DISCARD_SECONDS, self._give_up)
        ahead = bytes(self._incoming.ahead)
        self._incoming.ahead.clear()
        self._transport.release_all()
        self._transport.end_sending()
        self.discard(ahead)

    def _ends_with(self, data: bytes) -> bool:
        """Return whether these bytes have the end of the request's body."""
        body = self._incoming.body
        if body is None or body.ended:
            return False
        try:
            body.take(data)
        except InvalidRequest:
            self._incoming.body = None  # where it ends is unknown from now on
            return False
        return body.ended

    def _give_up(self) -> None:
        self._stop_discarding()
        # Not finish(), which under TLS reads on for up to 30 s, until the client's close_notify (RFC 8446 6.1).
        self.abort(self.reason)

    def _stop_discarding(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
