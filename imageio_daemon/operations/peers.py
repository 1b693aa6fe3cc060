# SPDX-License-Identifier: Apache-2.0
"""What operations ask of the clients that they are for."""

from typing import Protocol


class Peer(Protocol):
    """The client that requests a change."""

    def require_alive(self) -> None:
        """Raise PeerGone if the client has left. Then the change does not begin: newer ones may have come after it."""
        ...


class ByteSink(Protocol):
    """The destination of bytes that are made here."""

    async def write(self, data: bytes) -> None:
        """Send the bytes, and return when the peer may get more. Raises PeerGone."""
        ...
