# SPDX-License-Identifier: Apache-2.0
"""What a connection does now, and its end: at once, or in order, after what the client still sends is discarded."""

import enum

from ....net.watchdog import Watchdog
from .discard import Discard
from .handover import LaneHandover
from .incoming import Incoming
from .transport import ClientTransport


class State(enum.Enum):
    """What a connection does now."""

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
        self._discard: Discard | None = None

    @property
    def ends(self) -> bool:
        """Tell whether no further answer can be sent."""
        return self.state in (State.DISCARDING, State.CLOSED)

    def abort(self, reason: str) -> None:
        """Cut the connection. If a lane has the connection, the lane ends first."""
        self.reason = reason
        if self._handover.active:
            self._handover.abort()
        else:
            self._cut()

    def cut_off(self) -> None:
        """Cut the connection because the server ends, without waiting for a lane, whose storage may hang."""
        self.abort("shutdown")
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
        if self._discard is None:
            return False
        self._discard.feed(data)
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
        self._discard = Discard(self._transport, self._incoming, ended=self.finish, too_much=self._give_up)
        self._discard.start()

    def _give_up(self) -> None:
        self._stop_discarding()
        # Not finish(), which under TLS reads on for up to 30 s, until the client's close_notify (RFC 8446 6.1).
        self.abort(self.reason)

    def _stop_discarding(self) -> None:
        if self._discard is not None:
            self._discard.stop()
            self._discard = None
