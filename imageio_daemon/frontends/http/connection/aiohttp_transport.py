# SPDX-License-Identifier: Apache-2.0
"""The transport that a handler of aiohttp gets. It passes bytes on; the connection decides when to read and close."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from aiohttp import web

from ....lanes.http import Instruction
from ....transfers.transfer import Transfer
from ..lane.handover import Returned
from ..wire.exchange import Exchange
from ..wire.transport import ClientTransport

#: The name under which a handler finds its connection: `request.get_extra_info(CONNECTION)`.
CONNECTION = "imageio_connection"


class ConnectionControl(Protocol):
    """What a handler asks of its connection."""

    @property
    def exchange(self) -> Exchange:
        """Return the exchange, by which a handler and the connection deal with a request."""
        ...

    @property
    def must_close(self) -> bool:
        """Tell whether the connection closes after the answer to the running request."""
        ...

    @property
    def closed(self) -> bool:
        """Tell whether nothing more can be sent."""
        ...

    @property
    def carried_out(self) -> bool:
        """Tell whether a lane has carried out the running request."""
        ...

    @property
    def body_taken(self) -> bool:
        """Tell whether all of the request's body was received, here or by a lane."""
        ...

    async def hand_out(self, transfer: Transfer, instruction: Instruction) -> Awaitable[Returned]:
        """Have a lane carry out the running request on the open image. Return a wait for its result. Raises Error."""
        ...

    def take_back(self, instruction: Instruction, end: Returned) -> None:
        """Go on with the connection after the lane, unless it is lost. Raises the Error of the running request."""
        ...

    def error_answer(self, error: Exception) -> web.Response:
        """Return the answer to a request that has failed."""
        ...

    def answered(self, *, close: bool) -> None:
        """Note that an answer is complete. With `close` it was the last one."""
        ...

    def upgrade(self, head: bytes, adopt: Callable[[asyncio.Transport, bytes], None]) -> None:
        """Send this head. Then give another protocol the connection, with the bytes that follow the request."""
        ...

    def abort(self, reason: str) -> None:
        """Cut the connection."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection in order."""
        ...


class AiohttpTransport(asyncio.Transport):
    """Pass a handler's bytes on to the connection's transport."""

    def __init__(self, connection: ConnectionControl, transport: ClientTransport) -> None:
        super().__init__()
        self._connection = connection
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
        """Read no more for now, because the handler has enough."""
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
        """Return False: a connection of HTTP is not half-closed."""
        return False
