# SPDX-License-Identifier: Apache-2.0
"""What operations need of their clients."""

from typing import Protocol


class Peer(Protocol):
    """The client that requests a change."""

    def require_alive(self) -> None:
        """Raise PeerGone if the client has left. Then the change must not begin, as newer ones may have been made."""
        ...


class ByteSink(Protocol):
    """The client that gets the bytes of an answer."""

    async def write(self, data: bytes) -> None:
        """Send the bytes, and return when the peer may get more. Raises PeerGone."""
        ...
