# SPDX-License-Identifier: Apache-2.0
"""The negotiation phase of a connection, from accept to the first request."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, cast

from ... import logs
from ...buffers import Buffers
from ...connectionlimit import LOCAL, Place
from ...errors import DENIED, Error, Forbidden, StorageError, TooManyConnections
from ...nbdproto.constants import Reply
from ...nbdproto.events import Close, Event, FindExport, StartTls, Transmit
from ...nbdproto.negotiation import Negotiation, Tls
from ...storage.base import Backend
from ...storage.lane import Lanes
from ...tlssocket import TlsContext
from ...tlstransport import Pollers, shake_hands
from ...transfers import Transfer
from ...transferstore import TransferStore
from ...transports import keep_alive, pause_when_anything_waits
from ...units import KiB, MiB
from . import exports
from .exports import Attachment
from .lanesession import LaneSession
from .session import Session

log = logging.getLogger(__name__)

#: What clients are told to send at once; nbdcopy also looks for zeros in pieces of this size.
#: By Python: nbdcopy, 256 MiB on tmpfs on a busy machine, processor seconds of the server out and in: 256K 0.27 and
#: 0.33, 1M 0.19 and 0.22.
SESSION_BLOCK = 1 * MiB
#: By a lane, where requests cost less and what is small stays in the caches: nbdcopy, 512 MiB, MiB/s with 1M and 256K
#: out and in, tmpfs, 1 connection 1308, 1289 and 803, 881; 4 connections 1642, 1775 and 1152, 1120 (7 rounds); disk,
#: 1 connection 560, 608 and 754, 754; 4 connections 588, 651 and 741, 770 (21 rounds).
LANE_BLOCK = 256 * KiB
#: Received at once; options are small.
RECEIVE = 16 * KiB

#: Who serves a connection after the negotiation.
AnySession = Session | LaneSession

#: Returns the context to use now.
MakeContext = Callable[[], TlsContext]


@dataclass(frozen=True)
class Service:
    """What connections of one listening socket need."""

    store: TransferStore
    buffers: Buffers
    tls: Tls
    context: MakeContext | None
    handshake_timeout: float
    listed: bool
    #: For connections without TLS; None: Python serves them all.
    lanes: Lanes | None = None


class Owner(Protocol):
    """Who counts connections."""

    @property
    def pollers(self) -> Pollers | None:
        """Return where connections with TLS are polled, if there are any."""
        ...

    def admit(self, connection: "Handshake", address: str) -> Place | None:
        """Return the place of a connection; None: the server stops."""
        ...

    def replace(self, connection: "Handshake", session: AnySession) -> None:
        """Count the session instead."""
        ...

    def forget(self, connection: "Handshake | AnySession") -> None:
        """Count it no more."""
        ...


class Handshake(asyncio.BufferedProtocol):
    """Negotiate with one client, then hand the connection to a Session."""

    def __init__(self, service: Service, owner: Owner) -> None:
        self._service = service
        self._owner = owner
        self._negotiation = Negotiation(
            preferred=SESSION_BLOCK,
            tls=service.tls,
            listed=(lambda: exports.names(service.store)) if service.listed else None,
        )
        self._memory = bytearray(RECEIVE)
        self._arrived = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent.set()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._attachment: Attachment | None = None
        self._place: Place | None = None
        self._secure = False

    def stop(self) -> None:
        """Tell the client, with the next option, that the server stops."""
        self._negotiation.stopping = True

    def abort(self, reason: str) -> None:
        """Close now."""
        log.debug("connection aborted: %s", reason)
        self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, if there is room; go on, if it is the connection's second transport, which has TLS."""
        self._transport = cast(asyncio.Transport, transport)
        if self._secure:
            return
        pause_when_anything_waits(self._transport)
        peer = self._transport.get_extra_info("peername")
        self._place = self._owner.admit(self, str(peer[0]) if isinstance(peer, tuple) else LOCAL)
        if self._place is None:
            self._transport.abort()
            return
        # A mounted disk may be idle for hours: only the kernel can tell that its client is gone.
        keep_alive(self._socket)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return memory for the next bytes."""
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""
        if self._place is not None:
            self._place.spoke()
        self._negotiation.feed(memoryview(self._memory)[:nbytes])
        self._arrived.set()

    def pause_writing(self) -> None:
        """Note that the transport holds something that it could not send."""
        self._sent.clear()

    def resume_writing(self) -> None:
        """Note that it holds nothing."""
        self._sent.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
        self._detach()
        self._owner.forget(self)

    # The negotiation

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._service.handshake_timeout):
                await self._negotiate()
        except TimeoutError:
            self._drop("the negotiation took too long")
        except OSError as e:
            self._drop(f"TLS failed: {e}")
        except Error as e:
            self._drop(str(e))

    async def _negotiate(self) -> None:
        self._send()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            event = self._negotiation.next_event()
            while event is not None:
                if isinstance(event, Close):
                    self._close(event)
                    return
                if isinstance(event, Transmit):
                    await self._transmit(event)
                    return
                event = await self._answer(event) or self._negotiation.next_event()
            self._send()

    async def _answer(self, event: FindExport | StartTls) -> Event | None:
        if isinstance(event, StartTls):
            self._transport.pause_reading()  # what comes next is for TLS
            self._send()
            await self._start_tls()
            return self._negotiation.tls_started()
        self._transport.pause_reading()
        try:
            return await self._find(event)
        finally:
            if not self._transport.is_closing():
                self._transport.resume_reading()

    async def _find(self, event: FindExport) -> Event | None:
        try:
            transfer, export = await exports.find(self._service.store, event.name)
            self._negotiation.preferred = LANE_BLOCK if self._lanes_for(await transfer.backend()) else SESSION_BLOCK
            if event.enter:
                self._enter(transfer)
        except Forbidden:
            return self._negotiation.refused(Reply.ERR_UNKNOWN, DENIED)
        except TooManyConnections as e:
            return self._negotiation.refused(Reply.ERR_POLICY, str(e))
        except StorageError as e:
            log.error("storage failed: %s", e)
            return self._negotiation.refused(Reply.ERR_PLATFORM, "the image cannot be opened")
        except Error as e:
            return self._negotiation.refused(Reply.ERR_SHUTDOWN, str(e))
        return self._negotiation.found(export)

    def _enter(self, transfer: Transfer) -> None:
        """Use a transfer, and keep the place. Raises TooManyConnections, Forbidden."""
        self._attachment = Attachment(transfer)
        try:
            if self._place is not None:
                self._place.know(lambda: transfer.in_force)
        except TooManyConnections:
            self._detach()
            raise

    async def _start_tls(self) -> None:
        """Go on with a copy of the socket. Its transport is closed when TLS has begun."""
        context, pollers = self._service.context, self._owner.pollers
        if context is None or pollers is None:
            raise RuntimeError("TLS without a context")
        await self._sent.wait()
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket(fileno=os.dup(self._socket.fileno())))
            sock.setblocking(False)
            await shake_hands(pollers, sock, context(), self._secured)
            stack.pop_all()

    def _secured(self) -> "Handshake":
        self._secure = True
        self._transport.set_protocol(asyncio.Protocol())
        self._transport.close()
        return self

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    async def _transmit(self, event: Transmit) -> None:
        attachment = self._attachment
        if attachment is None:
            raise RuntimeError("transmission without an export")
        backend = await attachment.transfer.backend()
        await self._sent.wait()  # whoever goes on with the transport begins with one that holds nothing
        reply = self._negotiation.take_output()
        session = self._session(attachment, backend, event, reply)
        self._attachment = None
        self._owner.replace(self, session)
        session.start(event.rest, reply)

    def _lanes_for(self, backend: Backend, rest: bytes = b"", reply: bytes = b"") -> Lanes | None:
        lanes = self._service.lanes
        return lanes if lanes is not None and not self._secure and lanes.takes(backend, rest, reply) else None

    def _session(self, attachment: Attachment, backend: Backend, event: Transmit, reply: bytes) -> AnySession:
        transmission = event.transmission
        service, timeout = self._service, attachment.transfer.ticket.inactivity_timeout
        on_lost = self._owner.forget
        lanes = self._lanes_for(backend, event.rest, reply)
        if lanes is not None and self._transport.get_write_buffer_size() == 0:
            try:
                return LaneSession(
                    attachment, backend, lanes, transmission, self._transport, timeout=timeout, on_lost=on_lost
                )
            except OSError as e:
                log.warning("no fast lane for a connection: %s", e)
        return Session(
            attachment,
            backend,
            transmission,
            service.buffers,
            self._transport,
            tls=self._secure,
            timeout=timeout,
            on_lost=on_lost,
        )

    def _send(self) -> None:
        output = self._negotiation.take_output()
        if output:
            self._transport.write(output)

    def _close(self, event: Close) -> None:
        self._send()
        if event.reason is not None:
            log.info("connection ends in the negotiation: %s", event.reason, extra=logs.fields(tls=self._secure))
        self._transport.close()

    def _drop(self, reason: str) -> None:
        """Close a connection that may be between two transports: neither of them tells us when it is lost."""
        log.info("connection ends in the negotiation: %s", reason, extra=logs.fields(tls=self._secure))
        self._transport.abort()
        self._detach()
        self._owner.forget(self)

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
