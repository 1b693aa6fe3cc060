# SPDX-License-Identifier: Apache-2.0
"""The transport that a handler of aiohttp gets. It passes bytes on; the connection decides when to read and close."""

import asyncio
from typing import Any

from .life import ConnectionLife
from .transport import ClientTransport

#: The name under which a handler finds its connection: `request.get_extra_info(CONNECTION)`.
CONNECTION = "imageio_connection"


class AiohttpTransport(asyncio.Transport):
    """Pass a handler's bytes on to the connection's transport. `connection` is what handlers know it by."""

    def __init__(self, connection: object, life: ConnectionLife, transport: ClientTransport) -> None:
        super().__init__()
        self._connection = connection
        self._life = life
        self._transport = transport
        self._asyncio_transport = transport.asyncio_transport
        self._detached = False

    def detach(self) -> None:
        """Ignore the handler from now on, because it has not seen the body of its last request."""
        self._detached = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the connection for the name CONNECTION, and what asyncio's transport knows for others."""
        return self._connection if name == CONNECTION else self._asyncio_transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._detached or self._life.ends or self._transport.is_closing

    def close(self) -> None:
        """Close the connection in order."""
        if not self._detached:
            self._life.close("answered")

    def abort(self) -> None:
        """Cut the connection."""
        if not self._detached:
            self._life.abort("aborted")

    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._asyncio_transport.is_reading()

    def pause_reading(self) -> None:
        """Read no more for now, because the handler has enough."""
        self._transport.hold("handler")

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.release("handler")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes; the transport may keep a reference to them."""
        self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return self._asyncio_transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        """Return False: a connection of HTTP is not half-closed."""
        return False
