# SPDX-License-Identifier: Apache-2.0
"""The transmission phase of a connection: requests come in, replies go out."""

import asyncio
import logging
from collections.abc import Callable

from ...buffers import Buffers, Slice
from ...nbdproto.constants import Command, ErrorNumber
from ...nbdproto.messages import BadMagic
from ...nbdproto.replies import ExtendedReplies, Replies, SimpleReplies, StructuredReplies
from ...nbdproto.transmission import Request, Transmission
from ...storage.base import Backend
from ..watchdog import Watchdog
from .commands import Commands
from .errors import TRANSFER_ENDED
from .exports import Attachment
from .output import Output
from .receiver import Receiver
from .share import Share

log = logging.getLogger(__name__)

#: Requests of one connection that run, or wait to be sent, at a time. Linux sends 128, nbdcopy 64 and a few, qemu 16.
MAX_REQUESTS = 128


class Session(asyncio.BufferedProtocol):
    """Serve one client's requests until it leaves, the transfer ends or the server stops."""

    def __init__(
        self,
        attachment: Attachment,
        backend: Backend,
        transmission: Transmission,
        buffers: Buffers,
        transport: asyncio.Transport,
        *,
        tls: bool,
        timeout: float,
        on_lost: "Callable[[Session], None]",
    ) -> None:
        self._attachment = attachment
        self._transport = transport
        self._tls = tls
        self._on_lost = on_lost
        self._share = Share(buffers.pool, attachment.transfer)
        self._output = Output(transport, self._share, self._progress)
        self._commands = Commands(
            attachment.transfer,
            backend,
            transmission.export.size,
            _replies(transmission),
            self._share,
            self._output,
            self._request_ended,
        )
        self._receiver = Receiver(transmission, self._share, buffers.size, self)
        self._watchdog = Watchdog(asyncio.get_running_loop(), timeout, self._peers_turn, self._timed_out)
        self._held = False
        self._leaving = False  # no more requests are read
        self._refusing = False  # requests are read and refused
        self._lost = False

    def start(self, rest: bytes, reply: bytes) -> None:
        """Begin; rest: bytes that were received with the last option, reply: what it is answered."""
        self._transport.write(reply)
        self._transport.set_protocol(self)
        self._watchdog.start(self._transport)
        self._attachment.on_cancel(self.shut_down)
        self._receiver.feed(rest)

    # What ends a session

    def shut_down(self) -> None:
        """Finish what runs, refuse what comes meanwhile, and close."""
        self._refusing = True
        self._close_if_done()

    def abort(self, reason: str) -> None:
        """Close now."""
        if not self._lost:
            log.info("connection aborted: %s", reason, extra=self._fields())
            self._transport.abort()

    def _leave(self) -> None:
        """Answer what runs, and close."""
        if not self._leaving:
            self._leaving = True
            self._receiver.close()
            self._update_reading()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if (self._leaving or self._refusing) and not self._commands.running and self._output.idle and not self._lost:
            self._transport.close()

    # asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory for the next bytes."""
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""
        self._watchdog.progress()
        self._receiver.received(nbytes)

    def eof_received(self) -> bool:
        """Treat the end of the client's bytes as a goodbye: what runs is answered. TLS can't end one way only."""
        self._leave()
        return not self._tls

    def pause_writing(self) -> None:
        """Hold replies back."""
        self._output.pause()
        self._watchdog.writing_paused(paused=True)

    def resume_writing(self) -> None:
        """Send them."""
        self._watchdog.writing_paused(paused=False)
        self._output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back; what storage is busy with gives its buffers back when it has ended."""
        self._lost = True
        self._leaving = True
        self._watchdog.stop()
        self._receiver.close()
        self._commands.close()
        self._output.close()
        self._attachment.detach()
        self._on_lost(self)
        log.info("connection ended", extra=self._fields(error=exc))

    # For the receiver

    @property
    def full(self) -> bool:
        """Tell whether another request has to wait."""
        return self._commands.running + self._output.waiting >= MAX_REQUESTS or self._share.used_up

    def begin(self, request: Request) -> None:
        """Act on a request."""
        if request.command == Command.DISC and request.error is None:
            self._leave()
        elif self._refusing:
            self._commands.refuse(request, ErrorNumber.ESHUTDOWN, TRANSFER_ENDED)
        else:
            self._commands.begin(request)
            if request.error is not None and request.must_end:
                self._leave()

    def payload(self, request: Request, piece: Slice, offset: int, *, last: bool) -> None:
        """Take a piece of a payload."""
        self._commands.payload(request, piece, offset, last=last)

    def held(self) -> None:
        """Receive no more."""
        self._held = True
        self._update_reading()

    def resumed(self) -> None:
        """Receive again."""
        self._held = False
        self._watchdog.progress()
        self._update_reading()

    def violated(self, error: BadMagic) -> None:
        """End the connection."""
        log.info("connection ends: %s", error, extra=self._fields())
        self._leave()

    # Between the parts

    def _request_ended(self, ends: bool) -> None:
        if ends:
            self._refusing = True
        self._progress()

    def _progress(self) -> None:
        """Go on with what waited for requests to end, or for replies to be sent."""
        if self._lost:
            return
        self._receiver.resume()
        if self._leaving or self._refusing:
            self._close_if_done()

    def _update_reading(self) -> None:
        if self._lost or self._transport.is_closing():
            return
        if self._held or self._leaving:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _peers_turn(self) -> bool:
        return self._receiver.partial

    def _timed_out(self) -> None:
        self.abort("the client makes no progress")

    def _fields(self, **more: object) -> dict[str, dict[str, object]]:
        return self._attachment.fields(requests=self._commands.count, sent=self._output.sent, **more)


def _replies(transmission: Transmission) -> Replies:
    if transmission.extended:
        return ExtendedReplies()
    return StructuredReplies() if transmission.structured else SimpleReplies()
