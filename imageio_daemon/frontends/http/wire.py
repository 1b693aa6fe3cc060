# SPDX-License-Identifier: Apache-2.0
"""The socket of a connection: when it is read, what was really sent, and how it ends without losing the last bytes."""

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress

from ...connectionlimit import LOCAL
from ...errors import PeerGone
from ...tlssocket import TlsSocket
from ...transports import pause_when_anything_waits


class _Gone(asyncio.Transport):
    """The transport of a connection that is lost.

    The real one would be a circle with the connection, and stay until the collector runs.
    """

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Know nothing."""
        return default

    def is_closing(self) -> bool:
        """Say yes."""
        return True

    def abort(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


_GONE = _Gone()


class Wire:
    """A transport, and what is said about it: why it is not read, who waits until it holds nothing more."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.tls = transport.get_extra_info("sslcontext") is not None
        #: Something that was written is still held by the transport.
        self.writing_paused = False
        self._loop = asyncio.get_running_loop()
        self._holds: set[str] = set()
        self._drained: asyncio.Future[None] | None = None
        self._when_drained: Callable[[], None] | None = None
        self._lost: asyncio.Future[None] | None = None

    @property
    def peer(self) -> str:
        """Return the client's address and port; unix: it has none."""
        peer = self.transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"

    @property
    def address(self) -> str:
        """Return the client's address, or LOCAL."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else LOCAL

    @property
    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return int(self.transport.get_extra_info("socket").fileno())

    @property
    def tls_socket(self) -> TlsSocket | None:
        """Return the connection's TLS, if it has one that C can use."""
        found = self.transport.get_extra_info("tls_socket")
        return found if isinstance(found, TlsSocket) else None

    @property
    def can_be_lent(self) -> bool:
        """Tell whether C can speak to the peer."""
        return not self.tls or self.tls_socket is not None

    @property
    def unsent(self) -> bool:
        """Tell whether the transport holds something that was written. What it can send it sends at once."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def is_closing(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self.transport.is_closing()

    # Reading

    @property
    def held(self) -> bool:
        """Tell whether there is a reason not to read."""
        return bool(self._holds)

    def hold(self, why: str) -> None:
        """Read no more until every reason to hold is gone."""
        if not self._holds and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds.add(why)

    def release(self, why: str) -> None:
        """Take one reason back."""
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds and not self.transport.is_closing():
                self.transport.resume_reading()

    def release_all(self) -> None:
        """Take all reasons back."""
        for why in list(self._holds):
            self.release(why)

    @property
    def hung_up(self) -> bool:
        """Tell whether the peer can receive no more. A unix socket knows; over TCP only the next write finds out."""
        poller = select.poll()
        poller.register(self.fileno, 0)
        return any(events & select.POLLHUP for _, events in poller.poll(0))

    # Writing

    def watch_writing(self) -> None:
        """Have writing paused until the transport holds nothing more, so that drained() can tell.

        It is paused at once if a handshake has left something.
        """
        pause_when_anything_waits(self.transport)

    def pause_writing(self) -> None:
        """Note that the transport holds bytes that it could not send."""
        self.writing_paused = True

    def resume_writing(self) -> None:
        """Note that it holds none."""
        self.writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        call, self._when_drained = self._when_drained, None
        if call is not None:
            call()

    async def drained(self) -> None:
        """Wait until the transport holds no reference to what was written. Raises PeerGone."""
        if self.writing_paused:
            self._drained = self._loop.create_future()
            await self._drained
        if self.transport.is_closing():
            raise PeerGone("the connection was lost inside an answer")

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call back when drained() would return, without waiting where that is now; never, if lost() comes before."""
        if self.writing_paused or self.is_closing:
            self._when_drained = call
        else:
            call()

    # The end

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes, where that is possible (RFC 9112 9.6; TLS has no such thing)."""
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """Close when all that was written has left."""
        self.transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abort()

    async def gone(self) -> None:
        """Wait, cancelled or not, until the transport holds no reference to what was written: lost() was called."""
        while self.transport is not _GONE:
            self._lost = self._loop.create_future()
            with suppress(asyncio.CancelledError):
                await self._lost

    def lost(self) -> None:
        """Let go of the transport, which has let go of everything."""
        self.transport = _GONE
        self._when_drained = None
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
