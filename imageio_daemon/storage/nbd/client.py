# SPDX-License-Identifier: Apache-2.0
"""The NBD client of an image. C runs it; Python connects to the server, again if need be, and explains failures."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from typing import Any

from ioutil_ext import ffi, lib

from ...errors import CannotFlush, Error, OutOfRange, ServerGone, StorageError
from ...nbdproto.client_negotiation import Agreed
from ...nbdproto.constants import Command
from ...units import MiB
from ...urls.nbd import NbdAddress
from ..completions import check
from .client_handshake import ConnectOptions
from .nbd_session import Session, open_session, same_image

log = logging.getLogger(__name__)

#: Bytes of one READ or WRITE, which ends at a multiple of this. A cluster of qcow2 that two writes share is zeroed
#: first, and the second write waits for the first. Uploads of 1 GiB to Ceph RBD on 4 connections, 7 rounds, took 1.47 s
#: with 4 MiB and 1.27 s with 2 MiB (processor time of the OSD 1.06 and 0.81 s): fewer bytes are under way, and stay in
#: the processor's cache. 1100 MiB into qcow2 on tmpfs took 0.80 s with both on 4 connections, 0.94 and 0.98 s on one.
PIECE = 2 * MiB
#: Pieces of a long write that are under way at a time, so that qemu-nbd and the disk work while more is received.
WRITES = 3
#: Seconds to wait for the replies to sent requests before a session is closed. All requests of the image wait for this,
#: so it is not longer than clients wait for an answer.
DRAIN_TIMEOUT = 60.0
#: The bit that marks the device number of a server. Numbers of the kernel never have it.
_NO_DEVICE = 1 << 63


class NbdClient:
    """Keep a working session while operations need one. Use this on one loop, except explain().

    `session` is the first one. Ranges of whole units of `zero_unit` bytes, a power of two, are sure to be zeroed
    without data I/O; with None there are none. With `allocation`, this is so also for ranges that stay
    allocated. Raises StorageError if no descriptor or memory is left, after closing the session.
    """

    def __init__(
        self,
        address: NbdAddress,
        options: ConnectOptions,
        connections: int,
        session: Session,
        name: str,
        *,
        zero_unit: int | None,
        allocation: bool,
    ) -> None:
        self.address = address
        #: The result of the last negotiation.
        self.agreed: Agreed = session.agreed
        #: Returns the error of operations after unusable().
        self.found_unusable: Callable[[], Error] = lambda: ServerGone(str(address), "it is not usable any more")
        self._options = options
        self._connections = connections
        self._session: Session | None = None  # kept because C uses its TLS
        self._connecting: asyncio.Task[None] | None = None
        self._refusal: tuple[int, ServerGone] | None = None
        self._lost = False  # unflushed changes were lost, which was logged
        self._closing = False
        self._ended: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self.handle = _new_handle(name, address, session.agreed, zero_unit=zero_unit or 0, allocation=allocation)
        except StorageError:
            session.leave()
            raise
        try:
            self._begin(session)
        except StorageError:
            self.free()
            raise
        self._loop.add_reader(lib.iou_nbd_client_fd(self.handle), self._look)

    @property
    def state(self) -> Any:
        """Return an iou_nbd_client_state. Do not call this after close()."""
        return self._state(clear=False)

    def interrupt(self) -> None:
        """End cancelled operations of which nothing was sent. Thread-safe. Do not call this after close()."""
        lib.iou_nbd_client_interrupt(self.handle)

    def unusable(self, why: str) -> None:
        """Fail all later operations. Thread-safe. Do not call this after close()."""
        lib.iou_nbd_client_refuse(self.handle, why.encode(), 1)

    def explain(self, end: Any) -> Error | None:
        """Return the error of an operation; see Backend.explain(). Thread-safe."""
        if end.error == errno.ENODATA and end.syscall == lib.IOU_SYS_NONE:
            return OutOfRange("Requested range is outside of the image's bytes", int(end.size))
        if end.syscall != lib.IOU_SYS_SERVER:
            return None
        refusal = self._refusal
        if refusal is not None and refusal[0] == end.size:
            return refusal[1].with_traceback(None)
        failure = ffi.new("iou_nbd_failure *")
        if lib.iou_nbd_client_failure(self.handle, end.size, failure):
            return _gone(self.address, end.error, "for a reason that is too long ago")
        return self._error(failure)

    def _error(self, failure: Any) -> Error:
        text = ffi.string(failure.text).decode(errors="replace")
        server = f"NBD server {self.address}"
        if failure.kind == lib.IOU_NBD_UNUSABLE:
            return self.found_unusable()
        if failure.kind == lib.IOU_NBD_NO_FLUSH:
            return CannotFlush(server)
        if failure.kind == lib.IOU_NBD_UNSOUND:
            return StorageError(failure.error, server, text)
        if failure.kind == lib.IOU_NBD_GONE:
            return ServerGone(str(self.address), text)
        where = f"offset={failure.offset} length={failure.length}"
        command = Command(failure.command).name
        return StorageError(failure.error, f"NBD {command}", f"the server says {text!r}", where)

    async def close(self, wait: float) -> None:
        """End the session, after all replies have come or `wait` seconds. Call this when no operation runs."""
        self._closing = True
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        ended = self._ended = self._loop.create_future()
        check(lib.iou_nbd_client_leave(self.handle, round(wait * 1000)), "leave an NBD server")
        await ended
        self._loop.remove_reader(lib.iou_nbd_client_fd(self.handle))

    def free(self) -> None:
        """Free the handle. Call this after close(). Ended operations may still have references to the handle."""
        check(lib.iou_nbd_client_free(self.handle), "let go of an image")

    # Sessions

    def _state(self, *, clear: bool) -> Any:
        state = ffi.new("iou_nbd_client_state *")
        check(lib.iou_nbd_client_look(self.handle, state, clear), "look at an NBD session")
        return state

    def _begin(self, session: Session) -> None:
        """Give C a session. Raises StorageError."""
        told, _kept = session.for_c()
        code = lib.iou_nbd_client_begin(self.handle, told)
        if code:
            session.leave()
            raise StorageError(-code, f"NBD server {self.address}", "begin a session")
        for connection in session.connections:
            connection.sock.detach()  # C closes it
        self._session = session
        self.agreed = session.agreed
        if self.state.unflushed and not self._lost:
            self._lost = True
            log.error("NBD server %s left before all changes were flushed", self.address)

    def _look(self) -> None:
        state = self._state(clear=True)
        if state.life != lib.IOU_NBD_NONE:
            return
        self._session = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if state.wanted and self._connecting is None and not self._closing:
            self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        """Begin a session. If that fails, fail the operations that wait for it."""
        refusal = ServerGone(str(self.address), "it is not connected to any more")
        begun = False
        try:
            self._begin(await self._found())
            begun = True
        except ServerGone as e:
            refusal = e
        except StorageError as e:
            refusal = ServerGone(str(self.address), str(e))
        finally:
            self._connecting = None
            if not begun:
                text = str(refusal).encode(errors="replace")
                self._refusal = (lib.iou_nbd_client_refuse(self.handle, text, 0), refusal)

    async def _found(self) -> Session:
        session = await open_session(self.address, self._options, self._connections)
        if not same_image(self.agreed, session.agreed):
            session.leave()
            raise ServerGone(str(self.address), "it came back with another image")
        return session


def _gone(address: NbdAddress, number: int, why: str) -> Error:
    gone = number == errno.ENOTCONN
    return ServerGone(str(address), why) if gone else StorageError(number, f"NBD server {address}", why)


def _new_handle(name: str, address: NbdAddress, agreed: Agreed, *, zero_unit: int, allocation: bool) -> Any:
    """Return C's handle of the image. Raises StorageError."""
    options = ffi.new("iou_nbd_client_options *")
    kept = ffi.new("char[]", os.fsencode(name))
    options.name = kept
    options.device = _NO_DEVICE | hash(address) % _NO_DEVICE
    options.size = agreed.size
    options.piece, options.ahead = PIECE, WRITES
    options.zero_unit = zero_unit
    options.allocation = allocation
    options.block_size = agreed.sizes.minimum
    options.close_ms = round(DRAIN_TIMEOUT * 1000)
    result = ffi.new("iou_handle **")
    check(lib.iou_nbd_client_new(options, result), f"prepare {name}")
    return result[0]
