# SPDX-License-Identifier: Apache-2.0
"""The end of a connection whose client still sends what nobody wants.

An answer to a request whose body was not read reaches a client that is still sending only if the body is taken off the
socket, or the kernel sends a reset that overtakes it.
"""

import asyncio
from collections.abc import Callable

from ...errors import InvalidRequest
from ...units import MiB
from .framing import Body

#: A client that goes on for longer is not listening.
DISCARD_BYTES = 64 * MiB
DISCARD_SECONDS = 2.0


class Discard:
    """Throw away what comes, until the request ends or it is too much.

    body: where the request ends; None: nobody knows. ended and too_much are called when that is so.
    """

    def __init__(self, body: Body | None, *, ended: Callable[[], None], too_much: Callable[[], None]) -> None:
        self._body = body
        self._ended = ended
        self._too_much = too_much
        self._count = 0
        self._timer = asyncio.get_running_loop().call_later(DISCARD_SECONDS, too_much)

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
        if self._body is None or self._body.ended:
            return False
        try:
            self._body.take(data)
        except InvalidRequest:
            self._body = None  # nobody knows any more where it ends
            return False
        return self._body.ended
