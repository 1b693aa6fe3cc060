# SPDX-License-Identifier: Apache-2.0
"""The transport that a handler of aiohttp sees: bytes pass, the connection decides when to read and to close."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from aiohttp import web

from ...lanes.http import Instruction
from ...transfers.transfer import Transfer
from .exchange import Exchange
from .handover import Returned
from .transport import ClientTransport

#: The name under which a handler finds its connection: `request.get_extra_info(CONNECTION)`.
CONNECTION = "imageio_connection"


class ConnectionControl(Protocol):
    """What a connection decides for its handlers."""

    @property
    def exchange(self) -> Exchange:
        """Return what its requests are told and asked."""
        ...

    @property
    def must_close(self) -> bool:
        """Tell whether the answer that is given now is the connection's last."""
        ...

    @property
    def closed(self) -> bool:
        """Tell whether nothing more can be sent."""
        ...

    @property
    def carried_out(self) -> bool:
        """Tell whether a lane has carried out the request that runs."""
        ...

    @property
    def body_taken(self) -> bool:
        """Tell whether all of the request's body was received, by whoever."""
        ...

    async def hand_out(self, transfer: Transfer, instruction: Instruction) -> Awaitable[Returned]:
        """Have a lane carry out the request that runs, for the open image; return its end. Raises Error."""
        ...

    def take_back(self, instruction: Instruction, end: Returned) -> None:
        """Go on with the connection, which may be lost. Raises the Error of the request that runs."""
        ...

    def error_answer(self, error: Exception) -> web.Response:
        """Return the answer to a request that has failed."""
        ...

    def answered(self, *, close: bool) -> None:
        """Note that an answer is complete. close: it was the last."""
        ...

    def upgrade(self, head: bytes, adopt: Callable[[asyncio.Transport, bytes], None]) -> None:
        """Send this head, and give the connection to another protocol, with what the client has sent behind."""
        ...

    def abort(self, reason: str) -> None:
        """Cut the connection."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection in order."""
        ...


class AiohttpTransport(asyncio.Transport):
    """Pass on what a handler writes to the connection's transport."""

    def __init__(self, connection: ConnectionControl, transport: ClientTransport) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport
        self._asyncio_transport = transport.asyncio_transport
        self._detached = False

    def detach(self) -> None:
        """Let the handler have no effect any more: it has not seen the body of its last request."""
        self._detached = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what asyncio's transport knows; for CONNECTION, the connection."""
        return self._connection if name == CONNECTION else self._asyncio_transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self._detached or self._connection.closed

    def close(self) -> None:
        """Close the connection in order."""
        if not self._detached:
            self._connection.close("answered")

    def abort(self) -> None:
        """Cut the connection."""
        if not self._detached:
            self._connection.abort("aborted")

    def is_reading(self) -> bool:
        """Tell whether the socket is read."""
        return self._asyncio_transport.is_reading()

    def pause_reading(self) -> None:
        """Read no more: the handler has enough."""
        self._transport.hold("handler")

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.release("handler")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes; the transport may keep a reference to them."""
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return self._asyncio_transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        """Return that it cannot: HTTP has no half-closed connections."""
        return False
