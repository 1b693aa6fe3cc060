# SPDX-License-Identifier: Apache-2.0
"""The transport that aiohttp's handler sees: bytes pass, but when to read and when to close is not its decision."""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from .account import Account
from .wire import Wire

#: The name under which a handler finds its connection: `request.get_extra_info(CONNECTION)`.
CONNECTION = "imageio_connection"


class Gatekeeper(Protocol):
    """What a connection decides for its handler."""

    @property
    def closed(self) -> bool:
        """Tell whether nothing more can be sent."""
        ...

    def abort(self, reason: str) -> None:
        """Cut the connection."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection in order."""
        ...


class Gate(asyncio.Transport):
    """Pass on what a handler writes to the connection's real transport."""

    def __init__(self, connection: Gatekeeper, wire: Wire, account: Account) -> None:
        super().__init__()
        self._connection = connection
        self._wire = wire
        self._transport = wire.transport
        self._account = account

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the real transport knows, or the connection."""
        return self._connection if name == CONNECTION else self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self._connection.closed

    def close(self) -> None:
        """Close the connection in its own way."""
        self._connection.close("answered")

    def abort(self) -> None:
        """Cut the connection."""
        self._connection.abort("aborted")

    def is_reading(self) -> bool:
        """Tell whether the real transport reads."""
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        """Hold the client back: the handler has more than it can use now."""
        self._wire.hold("handler")

    def resume_reading(self) -> None:
        """Let the client go on."""
        self._wire.release("handler")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes; the transport may keep a reference to them."""
        self._account.sent += len(data)
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return self._transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        """Say no: HTTP has no half-closed connections."""
        return False
