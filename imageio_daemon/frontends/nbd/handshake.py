# SPDX-License-Identifier: Apache-2.0
"""The negotiation phase of a connection (proto.md, "Handshake"), from accept to the handover to a lane."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import cast

from ...errors import Error, StorageError, TooManyConnections, Unavailable
from ...lanes.nbd import NbdLane
from ...lanes.shared import MAX_STAGED
from ...nbdproto.agreement import Close, Event, Export, FindExport, StartTls, Transmit
from ...nbdproto.server_negotiation import ServerNegotiation
from ...net.admission import Admission, client_of
from ...net.connection_limit import Place, Stage
from ...net.tls_handshake import Handshakes
from ...net.tls_transport import detached
from ...net.transports import keep_alive, pause_when_anything_waits
from ...runtime import logs
from ...runtime.background import tell_failure
from ...runtime.request_activity import begin as begin_work
from ...transfers.transfer import Transfer
from ...units import KiB
from . import exports
from .errors import refusal
from .exports import PREFERRED_BLOCK, Attachment, NbdOptions
from .handover import LaneSession

log = logging.getLogger(__name__)

#: Seconds that storage may take to open an image, in addition to the client's time. Backends give up before, unless a
#: file system hangs.
OPEN_TIMEOUT = 60.0
#: Seconds that a stopping server gives clients in the negotiation, so that the reply to their next option has the
#: reason. The daemon's stop takes this much longer.
GRACE = 0.25
#: Most bytes of one receive. Options are small.
RECEIVE = 16 * KiB


class ServerHandshake(asyncio.BufferedProtocol):
    """Negotiate with one client, then hand the connection over to a lane.

    `handshakes` does those of TLS. Its poller also has connections that lanes have served, for their last second; see
    Poller.linger().
    """

    def __init__(self, options: NbdOptions, admission: Admission, handshakes: Handshakes) -> None:
        self._options = options
        self._admission = admission
        self._handshakes = handshakes
        self._negotiation = ServerNegotiation(
            preferred=PREFERRED_BLOCK,
            tls=options.tls,
            listed=(lambda: exports.names(options.store)) if options.listed else None,
        )
        self._memory = bytearray(RECEIVE)
        self._arrived = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent.set()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._timeout = asyncio.timeout(None)
        self._attachment: Attachment | None = None
        self._place: Place | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._secure = False
        self._peer: str

    def shut_down(self) -> None:
        """Answer the client's next option with NBD_REP_ERR_SHUTDOWN, and close after GRACE seconds."""
        self._negotiation.stopping = True
        self._grace = self._grace or asyncio.get_running_loop().call_later(GRACE, self.abort, "shutdown")

    def abort(self, reason: str) -> None:
        """Close the connection now. `reason` is for the log."""
        log.debug("connection aborted: %s", reason)
        if self._task is not None:
            self._task.cancel()  # during the TLS handshake there is no transport to abort
        self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the negotiation if there is a place. The second transport, which has TLS, continues it."""
        self._transport = cast(asyncio.Transport, transport)
        if self._secure:
            return
        pause_when_anything_waits(self._transport)
        self._begin()

    def _begin(self) -> None:
        self._peer, address = client_of(self._transport)
        try:
            self._place = self._admission.enter(self, Stage.SILENT, address, self._dropper(self))
        except Unavailable:
            log.info("connection refused: the server stops")
            self._transport.abort()
            return
        # A mounted disk may be idle for hours. Only TCP keep-alive probes find out that its client is gone (tcp(7)).
        keep_alive(self._transport.get_extra_info("socket"))
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(tell_failure)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the memory for the next receive."""
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        """Pass received bytes to the negotiation, and pause reading until the reply is sent."""
        self._transport.pause_reading()
        self._take(memoryview(self._memory)[:nbytes])

    def _take(self, received: bytes | memoryview) -> None:
        if self._place is not None:
            self._place.spoke()
        self._negotiation.feed(received)
        self._arrived.set()

    def pause_writing(self) -> None:
        """Make the negotiation wait while the transport holds bytes that the socket did not take."""
        self._sent.clear()

    def resume_writing(self) -> None:
        """Let the negotiation go on, because all bytes are sent."""
        self._sent.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the negotiation, because the connection is lost."""
        if self._task is not None:
            self._task.cancel()
        self._leave()

    # The negotiation

    async def _run(self) -> None:
        begin_work()  # for all options up to the one that enters: clients that are refused contexts go on without
        self._timeout = asyncio.timeout(self._options.handshake_timeout)
        try:
            async with self._timeout:
                await self._negotiate()
        except TimeoutError:
            self._drop("the negotiation took too long")
        except (OSError, Error) as e:
            self._drop(str(e))
        except asyncio.CancelledError:
            self._leave()
            raise
        except Exception:
            self._drop("it failed unexpectedly")
            raise

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
            if not self._arrived.is_set() and not self._transport.is_closing():
                self._transport.resume_reading()

    async def _answer(self, event: FindExport | StartTls) -> Event | None:
        if isinstance(event, FindExport):
            return await self._find(event)
        self._send()
        await self._start_tls()
        return self._negotiation.tls_started()

    async def _find(self, event: FindExport) -> Event | None:
        try:
            with self._storage_at_work():
                transfer, export = await self._look_up(event)
            if event.enter:
                self._enter(transfer)
        except Error as e:
            if isinstance(e, StorageError):
                log.error("storage failed: %s", e)
            return self._negotiation.refused(*refusal(e))
        finally:
            if event.enter:
                begin_work()
        return self._negotiation.found(export)

    async def _look_up(self, event: FindExport) -> tuple[Transfer, Export]:
        return await exports.find(self._options.store, event.name, changes=event.changes)

    @contextmanager
    def _storage_at_work(self) -> Iterator[None]:
        """Do not count the time that storage takes as the client's. Only a client with a ticket waits for storage."""
        now, deadline = asyncio.get_running_loop().time, self._timeout.when()
        if deadline is None:
            raise RuntimeError("a negotiation without a time-out")
        began = now()
        self._timeout.reschedule(deadline + OPEN_TIMEOUT)
        try:
            yield
        finally:
            if not self._timeout.expired():
                self._timeout.reschedule(deadline + now() - began)

    def _enter(self, transfer: Transfer) -> None:
        """Attach the connection to a transfer, and keep its place. Raises TooManyConnections, Forbidden."""
        self._options.lanes.require_room(NbdLane)
        self._attachment = Attachment(transfer, self._options.name, self._peer)
        try:
            if self._place is not None:
                self._place.know(lambda: transfer.in_force)
        except TooManyConnections:
            self._detach()
            raise

    async def _start_tls(self) -> None:
        """Do the TLS handshake on the same socket. Raises OSError."""
        context = self._options.context
        if context is None:
            raise RuntimeError("TLS without a context")
        await self._sent.wait()
        with ExitStack() as stack:
            sock = stack.enter_context(detached(self._transport)[0])
            try:
                await self._handshakes.shake(sock, context(), self._secured)
            except OSError as e:
                raise ConnectionError(f"TLS failed: {e}") from None
            stack.pop_all()

    def _secured(self) -> "ServerHandshake":
        self._secure = True
        return self

    async def _transmit(self, event: Transmit) -> None:
        attachment = self._attachment
        if attachment is None:
            raise RuntimeError("transmission without an export")
        backend = await attachment.transfer.backend()
        reply = self._negotiation.take_output()
        if len(reply) > MAX_STAGED:
            self._transport.write(reply)
            reply = b""
        await self._sent.wait()  # detached() needs a transport without unsent bytes
        session = LaneSession(
            attachment,
            backend,
            self._options.lanes,
            event.transmission,
            detached(self._transport),
            self._handshakes.poller,
            service=self._options.name,
            client=self._peer,
            timeout=attachment.transfer.ticket.inactivity_timeout,
            on_lost=self._admission.forget,
        )
        self._attachment = None
        if self._grace is not None:
            self._grace.cancel()
        self._admission.replace(self, session, self._dropper(session))
        session.start(event.rest, reply)

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
        """Close the connection now, without waiting for connection_lost(), which does not come in the TLS handshake."""
        log.info("connection ends in the negotiation: %s", reason, extra=logs.fields(tls=self._secure))
        self._transport.abort()
        self._leave()

    @staticmethod
    def _dropper(connection: "ServerHandshake | LaneSession") -> Callable[[], object]:
        """Return a function that aborts a connection in the next step of the loop, because another needs its place."""
        return partial(asyncio.get_running_loop().call_soon, connection.abort, "limit")

    def _leave(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self._detach()
        self._admission.forget(self)

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
