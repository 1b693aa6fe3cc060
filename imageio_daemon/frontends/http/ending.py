# SPDX-License-Identifier: Apache-2.0
"""How a connection ends: in order, after what the client still sends was discarded, or at once."""

from ...net.watchdog import Watchdog
from .discard import Discard
from .handover import LaneHandover
from .incoming import Incoming
from .phase import Phase, State
from .transport import ClientTransport


class Ending:
    """End one connection. reason: why, for the log; `client` until somebody else decides."""

    def __init__(
        self,
        phase: Phase,
        transport: ClientTransport,
        incoming: Incoming,
        watchdog: Watchdog,
        handover: LaneHandover,
    ) -> None:
        self.reason = "client"
        self._phase = phase
        self._transport = transport
        self._incoming = incoming
        self._watchdog = watchdog
        self._handover = handover
        self._discard: Discard | None = None

    def abort(self, reason: str) -> None:
        """Cut the connection: the answer cannot be completed. A lane lets go of it first."""
        self.reason = reason
        if self._handover.active:
            self._handover.abort()
        else:
            self._cut()

    def cut_off(self) -> None:
        """Cut it because the server ends, even if a lane does not let go of it: storage may hang."""
        self.abort("shutdown")
        self._cut()

    def close(self, reason: str) -> None:
        """Send what was written, discard what the client still sends, and close."""
        if self._phase.ends:
            return
        self.reason = reason
        if self._incoming.unwanted:
            self._begin_discard()
        else:
            self.finish()

    def refuse(self, reason: str, answer: bytes) -> None:
        """Answer a connection for which there is no place, and close."""
        self.reason = reason
        self._transport.write(answer)
        self._begin_discard()

    def finish(self) -> None:
        """Close when all that was written was sent."""
        self._stop_discarding()
        self._phase.state = State.CLOSED
        self._watchdog.progress()
        self._transport.close()

    def discard(self, data: bytes) -> bool:
        """Discard bytes that the socket brought. False: they may be wanted."""
        if self._discard is None:
            return False
        self._discard.feed(data)
        return True

    def lost(self) -> None:
        """Note that the connection is lost."""
        self._phase.state = State.CLOSED
        self._stop_discarding()

    def _cut(self) -> None:
        self._phase.state = State.CLOSED
        self._transport.abort()

    def _begin_discard(self) -> None:
        self._phase.state = State.DISCARDING
        self._discard = Discard(self._transport, self._incoming, ended=self.finish, too_much=self._give_up)
        self._discard.start()

    def _give_up(self) -> None:
        self._stop_discarding()
        # Not finish(): under TLS that goes on reading, up to 30 s, for the peer's farewell.
        self.abort(self.reason)

    def _stop_discarding(self) -> None:
        if self._discard is not None:
            self._discard.stop()
            self._discard = None
