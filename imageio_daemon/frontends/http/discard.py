# SPDX-License-Identifier: Apache-2.0
"""The end of a connection whose client still sends what nobody wants.

An answer to a request whose body was not read reaches a client that is still sending only if the body is taken off the
socket, or the kernel sends a reset that overtakes it.
"""

import asyncio
from collections.abc import Callable

from ...errors import InvalidRequest
from ...units import MiB
from .incoming import Incoming
from .wire import Wire

#: A client that goes on for longer is not listening.
DISCARD_BYTES = 64 * MiB
DISCARD_SECONDS = 2.0


class Discard:
    """Throw away what comes, until the request ends or it is too much.

    ended and too_much are called when that is so.
    """

    def __init__(
        self, wire: Wire, incoming: Incoming, *, ended: Callable[[], None], too_much: Callable[[], None]
    ) -> None:
        self._wire = wire
        self._incoming = incoming
        self._ended = ended
        self._too_much = too_much
        self._count = 0
        self._timer = asyncio.get_running_loop().call_later(DISCARD_SECONDS, too_much)

    def start(self) -> None:
        """Begin with what is here already."""
        ahead = bytes(self._incoming.ahead)
        self._incoming.ahead.clear()
        self._wire.release_all()
        self._wire.end_sending()
        self.feed(ahead)

    def feed(self, data: bytes) -> None:
        """Take bytes that the socket brought."""
        self._count += len(data)
        if self._ends_with(data):
            self._ended()
        elif self._count > DISCARD_BYTES:
            self._too_much()

    def stop(self) -> None:
        """Let the time be."""
        self._timer.cancel()

    def _ends_with(self, data: bytes) -> bool:
        body = self._incoming.body
        if body is None or body.ended:
            return False
        try:
            body.take(data)
        except InvalidRequest:
            self._incoming.body = None  # nobody knows any more where it ends
            return False
        return body.ended
