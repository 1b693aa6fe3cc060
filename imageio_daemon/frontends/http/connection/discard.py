# SPDX-License-Identifier: Apache-2.0
"""The end of a connection whose client still sends a body that nobody reads.

If a socket is closed while it has unread bytes, the kernel sends a reset, which overtakes the answer (RFC 9112 9.6). So
the rest of the body is read and discarded first.
"""

import asyncio
from collections.abc import Callable

from ....errors import InvalidRequest
from ....units import MiB
from .incoming import Incoming
from .transport import ClientTransport

#: Most bytes and seconds. A client that goes on for longer does not read the answer.
DISCARD_BYTES = 64 * MiB
DISCARD_SECONDS = 2.0


class Discard:
    """Discard what is received. Then call `ended` at the end of the request, or `too_much` when a limit is reached."""

    def __init__(
        self, transport: ClientTransport, incoming: Incoming, *, ended: Callable[[], None], too_much: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._incoming = incoming
        self._ended = ended
        self._too_much = too_much
        self._count = 0
        self._timer = asyncio.get_running_loop().call_later(DISCARD_SECONDS, too_much)

    def start(self) -> None:
        """Begin with the bytes that were received already."""
        ahead = bytes(self._incoming.ahead)
        self._incoming.ahead.clear()
        self._transport.release_all()
        self._transport.end_sending()
        self.feed(ahead)

    def feed(self, data: bytes) -> None:
        """Discard bytes that were received."""
        self._count += len(data)
        if self._ends_with(data):
            self._ended()
        elif self._count > DISCARD_BYTES:
            self._too_much()

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _ends_with(self, data: bytes) -> bool:
        body = self._incoming.body
        if body is None or body.ended:
            return False
        try:
            body.take(data)
        except InvalidRequest:
            self._incoming.body = None  # where it ends is unknown from now on
            return False
        return body.ended
