# SPDX-License-Identifier: Apache-2.0
"""Connections to NBD servers before the transmission phase (proto.md, "Handshake"): connect, negotiate, start TLS."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import ServerGone, ServerRefuses
from ...nbdproto.client_negotiation import Agreed, ClientNegotiation, ExportRefused, ServerViolation
from ...nbdproto.constants import Command, OptionType, Reply
from ...nbdproto.messages import BadMagic, RequestHeader
from ...net.tls_socket import WANTS_INPUT, WANTS_ROOM, TlsContext, TlsSocket
from ...net.transports import keep_alive, send_at_once
from ...units import KiB
from ...urls.nbd import NbdAddress

log = logging.getLogger(__name__)

#: Bytes of memory for the server's replies.
_MEMORY = 16 * KiB
#: Seconds after which the kernel ends a connection whose server does not acknowledge data or keeps its window closed
#: (tcp(7), TCP_USER_TIMEOUT; the default is 15 minutes). This is twice the time that clients wait, so that a server
#: whose storage hangs for a while keeps its connection. It also replaces the number of probes of keep_alive().
STUCK_TIMEOUT = 120.0
#: Bytes of the send buffer of a unix socket: the most that every process may ask for (net.core.wmem_max). The kernel
#: doubles it (socket(7)). With this and with the default, which is half of it, 1 GiB took 1.16 and 1.21 s to Ceph, 0.72
#: and 0.82 s into qcow2 on tmpfs (17 rounds). With 4 MiB, an upload on one connection took 1.35 s instead of 1.14 s,
#: because the bytes leave the processor's cache before they are used again.
UNIX_BUFFER = 208 * KiB


#: Refusals that are final until somebody mends the server or the ticket, with the text for clients. 0 stands for no
#: reply, from a server that is too old. ERR_POLICY and ERR_PLATFORM are not final, because servers also send them while
#: something is in use or broken.
_REFUSALS = {
    Reply.ERR_UNKNOWN: "The server that has the image does not have the export",
    Reply.ERR_TLS_REQD: "The server that has the image wants TLS",
    Reply.ERR_INVALID: "The server that has the image does not take what it was asked for",
    Reply.ERR_BLOCK_SIZE_REQD: "The server that has the image does not take what it was asked for",
    0: "The server that has the image is too old, or has too many bitmaps",
}


class ConnectOptions(NamedTuple):
    """How to connect to a server.

    With `dirty`, negotiate the dirty bitmaps of the export. `context` is for TLS, if the address has TLS. `timeout` is
    the seconds for connecting and the whole negotiation, and `greeting_timeout` those until the server's greeting.
    """

    dirty: bool
    context: TlsContext | None
    timeout: float
    greeting_timeout: float


class Connection(NamedTuple):
    """A connection in its transmission phase, and the result of the negotiation."""

    sock: socket.socket
    tls: TlsSocket | None
    agreed: Agreed

    def leave(self) -> None:
        """Close a connection that was not used. Send NBD_CMD_DISC before, if the socket has room for it."""
        _close(self.sock, self.tls, RequestHeader(Command.DISC, 0, 0, 0, 0).pack(extended=self.agreed.extended))


def _close(sock: socket.socket, tls: TlsSocket | None, last: bytes) -> None:
    """Close a connection. Send its last bytes before, if there are any, and the socket has room for them."""
    with suppress(OSError):
        if last and tls is None:
            sock.send(last)
        elif last and tls is not None:
            tls.write(last)
            tls.end()
    sock.close()


async def connect(address: NbdAddress, options: ConnectOptions, only: Sequence[str] = ()) -> Connection:
    """Return a connection in its transmission phase. With `only`, select these metadata contexts, and nothing else.

    Raises ServerGone, with the reason, if the server cannot be reached, violates the protocol, exceeds a timeout or
    does not serve now. Raises ServerRefuses if it does not have the export, or if TLS cannot be started. A cancelled
    task closes the connection.
    """
    try:
        async with asyncio.timeout(options.timeout):
            async with asyncio.timeout(options.greeting_timeout) as greeting:
                sock = await _connected(address)
                handshake = ClientHandshake(address, options, sock, only)
                try:
                    return await handshake.run(lambda: greeting.reschedule(None))
                except BaseException:
                    handshake.hang_up()
                    raise
    except TimeoutError:
        raise ServerGone(str(address), "it does not answer in time") from None
    except (ServerViolation, BadMagic) as e:
        log.error("NBD server %s breaks the protocol: %s", address, e)
        raise ServerGone(str(address), str(e)) from None
    except (OSError, ExportRefused) as e:
        told = _refusal(e)
        raise (ServerRefuses(str(address), str(e), told) if told else ServerGone(str(address), str(e))) from None


class ClientHandshake:
    """Negotiate on a connected socket."""

    def __init__(
        self, address: NbdAddress, options: ConnectOptions, sock: socket.socket, only: Sequence[str] = ()
    ) -> None:
        self._address = address
        self._options = options
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._tls: TlsSocket | None = None
        self._negotiation = ClientNegotiation(address.export, tls=address.tls, dirty=options.dirty, only=only)
        self._memory = memoryview(bytearray(_MEMORY))

    async def run(self, greeted: Callable[[], None]) -> Connection:
        """Negotiate. Call `greeted` after the server's greeting.

        Raises OSError, ExportRefused, ServerViolation, BadMagic.
        """
        negotiation = self._negotiation
        was_greeted = False
        while negotiation.agreed is None:
            await self._send(negotiation.take_output())
            if negotiation.wants_tls:
                await self._start_tls()
            else:
                negotiation.feed(self._memory[: await self._receive()])
            if negotiation.greeted and not was_greeted:
                was_greeted = True
                greeted()
        return Connection(self._sock, self._tls, negotiation.agreed)

    def hang_up(self) -> None:
        """Close a connection whose negotiation has failed. Send the last output (NBD_OPT_ABORT) before."""
        _close(self._sock, self._tls, self._negotiation.take_output())

    async def _send(self, data: bytes) -> None:
        if self._tls is None:
            await self._loop.sock_sendall(self._sock, data)
            return
        tls = self._tls
        while data:
            data = data[await self._done(lambda: tls.write(data)) :]  # noqa: B023 - called before data changes

    async def _receive(self) -> int:
        """Receive into the memory, and return the number of bytes. Raises OSError, also at the end."""
        tls = self._tls
        if tls is None:
            count = await self._loop.sock_recv_into(self._sock, self._memory)
        else:
            count = await self._done(lambda: tls.readinto(self._memory))
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

    async def _start_tls(self) -> None:
        context = self._options.context
        if context is None:
            raise RuntimeError("TLS without a context")
        tls = context.wrap(self._sock, self._address.tls_hostname)
        await self._done(tls.handshake)
        self._tls = tls
        self._negotiation.tls_started()

    async def _done(self, function: Callable[[], int]) -> int:
        """Call a function of TLS until it has a result, and return that."""
        while (result := function()) in (WANTS_INPUT, WANTS_ROOM):
            await self._ready(result)
        return result

    async def _ready(self, wanted: int) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        fd, loop = self._sock.fileno(), self._loop
        add, remove = (
            (loop.add_reader, loop.remove_reader) if wanted == WANTS_INPUT else (loop.add_writer, loop.remove_writer)
        )
        add(fd, _set, ready)
        try:
            await ready
        finally:
            remove(fd)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _connected(address: NbdAddress) -> socket.socket:
    """Return a connected socket, with its options set. Raises OSError."""
    if address.socket:
        return await _connect(socket.AF_UNIX, address.socket)
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, *_, place in await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            return await _connect(family, place)
        except OSError as e:
            failure = e
    raise failure or OSError(errno.EADDRNOTAVAIL, "the host has no address")


async def _connect(family: int, place: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, place)
        if family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER)
        else:
            keep_alive(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STUCK_TIMEOUT * 1000))
            send_at_once(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _refusal(error: Exception) -> str | None:
    """Return the text for clients if a refusal is final, or None if a retry may help."""
    if isinstance(error, OSError) and error.errno == errno.EKEYREJECTED:
        return "The certificate of the server that has the image is not trusted"
    if not isinstance(error, ExportRefused):
        return None
    if error.option == OptionType.STARTTLS and error.reply != Reply.ERR_SHUTDOWN:  # servers send various replies
        return "The server that has the image does not have TLS"
    return _REFUSALS.get(error.reply)
