# SPDX-License-Identifier: Apache-2.0
"""A connection to an NBD server until its transmission phase: connect, negotiate, start TLS (proto.md, "Handshake")."""

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

#: Bytes of memory for the server's replies.
_MEMORY = 16 * KiB
#: Seconds after which the kernel ends a connection whose server does not acknowledge data or keeps its window closed
#: (tcp(7), TCP_USER_TIMEOUT). The default is 15 minutes. It is twice the time that clients wait, so that a server whose
#: storage hangs for a while keeps its connection. It also replaces the number of probes of keep_alive().
STUCK_TIMEOUT = 120.0
#: Bytes of requests that a unix socket takes: what every process may ask for (net.core.wmem_max). The kernel makes it
#: twice as much (socket(7)). 1 GiB of data, 17 rounds with this and with the kernel's own half: to Ceph 1.16 and 1.21
#: s, into qcow2 on tmpfs 0.72 and 0.82. With 4 MiB, an upload on one connection took 1.35 s in place of 1.14: what it
#: holds leaves the processor's cache before it is used again.
UNIX_BUFFER = 208 * KiB


class Options(NamedTuple):
    """How to connect to a server.

    dirty: negotiate the dirty bitmaps of the export. context: for TLS; None: the address has no TLS. timeout: seconds
    for connecting and the whole negotiation. greeting_timeout: seconds from connecting to the server's greeting.
    """

    dirty: bool
    context: ssl.SSLContext | None
    timeout: float
    greeting_timeout: float


class ClientHandshake(asyncio.BufferedProtocol):
    """Connect and negotiate. After that the transport belongs to the ClientConnection."""

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
        """Return a connection in its transmission phase.

        Raises ServerGone, with the reason: the server cannot be reached, refuses the export, violates the protocol or
        exceeds a timeout. If the task is cancelled, the connection is closed.
        """
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
            self._open_transport = None  # it is closed already, and uvloop's raises an error at another close()
            raise

    async def _receive(self) -> None:
        """Wait until bytes were received. Raises the failure that ended the connection."""
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
        # So resume_writing() means that the transport refers to no memory any more.
        pause_when_anything_waits(transport)

    def _hang_up(self) -> None:
        """Close a connection whose negotiation failed, after the negotiation's last output (NBD_OPT_ABORT)."""
        transport = self._open_transport
        if transport is not None and not transport.is_closing():
            transport.write(self._negotiation.take_output())
            transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, and set the options of its socket."""
        # uvloop's transports do not derive from asyncio's classes.
        self._take_transport(cast(asyncio.Transport, transport))
        sock = transport.get_extra_info("socket")
        if sock is not None and self._address.socket:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER)
        elif sock is not None:
            keep_alive(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STUCK_TIMEOUT * 1000))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory to receive the next bytes into."""
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes. A violation of the protocol is logged and ends the connection."""
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
        """Close the connection: a server that ends its direction sends no more replies."""
        return False

    def pause_writing(self) -> None:
        """Note, for the ClientConnection, that the transport holds unsent bytes."""
        self._paused = True

    def resume_writing(self) -> None:
        """Note, for the ClientConnection, that the transport has sent all of its bytes."""
        self._paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait for bytes with the reason of the loss."""
        if self._failure is None:
            self._failure = exc
        self._lost = True
        self._changed.set()
