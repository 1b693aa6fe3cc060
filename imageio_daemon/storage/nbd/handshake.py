# SPDX-License-Identifier: Apache-2.0
"""The negotiation phase of a connection to an NBD server, from connecting to the first request."""

import asyncio
import logging
import socket
import ssl
from typing import NamedTuple, cast

from ...errors import ServerGone
from ...nbdproto.client.negotiation import ClientNegotiation, Refused, Violation
from ...nbdproto.messages import BadMagic
from ...net.transports import keep_alive, pause_when_anything_waits
from ...units import KiB
from ...urls.nbd import NbdAddress
from .connection import ClientConnection

log = logging.getLogger(__name__)

#: Memory for the server's replies.
_MEMORY = 16 * KiB
#: Seconds until a server is given up that does not confirm what was sent, or takes nothing more: by default the kernel
#: goes on for 15 minutes. Twice the time that clients wait, so storage that hangs for a while is waited for. It holds
#: for the probes of keep_alive(), too.
STUCK_TIMEOUT = 120.0


class Options(NamedTuple):
    """How to connect. Times in seconds. `greeting_timeout`: from connecting to the first bytes of the server."""

    dirty: bool
    context: ssl.SSLContext | None
    timeout: float
    greeting_timeout: float


class ClientHandshake(asyncio.BufferedProtocol):
    """Connect and negotiate; the transport is the ClientConnection's then."""

    def __init__(self, address: NbdAddress, options: Options) -> None:
        self._address = address
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._open_transport: asyncio.Transport | None = None
        self._negotiation = ClientNegotiation(address.export, tls=address.tls, dirty=options.dirty)
        self._memory = memoryview(bytearray(_MEMORY))
        self._paused = False
        self._failure: Exception | None = None
        self._lost = False
        self._changed = asyncio.Event()  # something was received, or the connection has ended

    @classmethod
    async def connect(cls, address: NbdAddress, options: Options) -> ClientConnection:
        """Return a connection in its transmission phase. Raises ServerGone: with the reason, whatever it is."""
        handshake = cls(address, options)
        try:
            async with asyncio.timeout(options.timeout):
                async with asyncio.timeout(options.greeting_timeout) as greeting:
                    await handshake._open()
                    while not handshake._negotiation.greeted:
                        await handshake._receive()
                    greeting.reschedule(None)
                return await handshake._negotiate()
        except TimeoutError:
            handshake._hang_up()
            raise ServerGone(str(address), "it does not answer in time") from None
        except (OSError, Refused, Violation, BadMagic) as e:
            handshake._hang_up()
            raise ServerGone(str(address), str(e)) from None
        except BaseException:
            handshake._hang_up()
            raise

    @property
    def _transport(self) -> asyncio.Transport:
        if self._open_transport is None:
            raise RuntimeError("not connected")
        return self._open_transport

    async def _open(self) -> None:
        try:
            if self._address.socket:
                await self._loop.create_unix_connection(lambda: self, self._address.socket)
            else:
                await self._loop.create_connection(lambda: self, self._address.host, self._address.port)
        except BaseException:
            self._open_transport = None  # closed already, and uvloop's does not even take a close() any more
            raise

    async def _receive(self) -> None:
        """Wait for bytes; raise what ended the connection."""
        self._changed.clear()
        if self._failure is None and not self._lost:
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        if self._lost:
            raise ConnectionResetError("the server closed the connection")

    async def _negotiate(self) -> ClientConnection:
        while self._negotiation.agreed is None:
            self._transport.write(self._negotiation.take_output())
            if self._negotiation.wants_tls:
                await self._start_tls()
            else:
                await self._receive()
        return ClientConnection(self._address, self._negotiation.agreed, self._transport, paused=self._paused)

    async def _start_tls(self) -> None:
        context = self._options.context
        if context is None:
            raise RuntimeError("TLS without a context")
        transport = await self._loop.start_tls(
            self._transport, self, context, server_hostname=self._address.tls_hostname, ssl_shutdown_timeout=1.0
        )
        if transport is None:
            raise ConnectionResetError("the server left while TLS started")
        self._take_transport(transport)
        self._negotiation.tls_started()

    def _take_transport(self, transport: asyncio.Transport) -> None:
        self._open_transport = transport
        # When writing resumes, all that was written has left our memory.
        pause_when_anything_waits(transport)

    def _hang_up(self) -> None:
        """End a connection that did not come about, with the goodbye that the negotiation may have left."""
        transport = self._open_transport
        if transport is not None and not transport.is_closing():
            transport.write(self._negotiation.take_output())
            transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports are not below asyncio's classes.
        self._take_transport(cast(asyncio.Transport, transport))
        sock = transport.get_extra_info("socket")
        # A unix socket keeps its 208 KiB: with 4 MiB an upload on one connection took 1.35 instead of 1.14 s. Memory of
        # the kernel that is used again at once is still in the processor's cache.
        if sock is not None and not self._address.socket:
            keep_alive(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STUCK_TIMEOUT * 1000))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory for the next bytes."""
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""
        if self._failure is not None:
            return
        try:
            self._negotiation.feed(self._memory[:nbytes])
        except Refused as e:
            self._failure = e
        except (Violation, BadMagic) as e:
            log.error("NBD server %s breaks the protocol: %s", self._address, e)
            self._failure = e
            self._transport.abort()
        self._changed.set()

    def eof_received(self) -> bool:
        """Close: a server that says no more has left."""
        return False

    def pause_writing(self) -> None:
        """Note it for the connection."""
        self._paused = True

    def resume_writing(self) -> None:
        """Note it for the connection."""
        self._paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake who waits for bytes."""
        if self._failure is None:
            self._failure = exc
        self._lost = True
        self._changed.set()
