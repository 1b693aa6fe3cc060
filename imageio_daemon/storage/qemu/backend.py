# SPDX-License-Identifier: Apache-2.0
"""Images that qemu knows how to open: an NBD server of our own for each transfer."""

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from ioutil_ext import lib

from ...errors import BitmapInUse, ImageInUse, NotFound, StorageError
from ...units import GiB, MiB
from ..backend import BackendInfo, Operation
from ..file.backend import FileBackend
from ..file.engine import Engine
from ..nbd.backend import NbdBackend
from ..nbd.client_handshake import ConnectOptions
from ..threads import in_thread
from . import chain, leftovers, reasons
from .process import QemuNbd

log = logging.getLogger(__name__)

#: Bytes of a question whether an image reads as zeros, and the most questions, one after the other: more than 1 TiB. A
#: question to Ceph takes 0.4 ms, so it is as long as any server takes. It has whole objects, which have 32 MiB at most:
#: librbd before 17 counts from the wrong place if it begins within one.
STEP = 2 * GiB - 32 * MiB
MAX_ASKED = 600
#: Bytes at the end that are read instead. When qemu-nbd 7.2 looks for data at the end of an image on Ceph that has no
#: whole sectors, it ends with an assertion.
LAST = 512


class QemuServer(NamedTuple):
    """How an image is served.

    run_dir: has the server's socket. bitmap: one of the image that the server tells. answer_timeout: as in
    QemuNbd.start().
    """

    run_dir: str
    connections: int
    writable: bool
    bitmap: str | None = None
    answer_timeout: float | None = None


class QemuBackend(NbdBackend):
    """Serve an image through a qemu-nbd that lives as long as this; see Backend for the contract."""

    _server: QemuNbd
    _identity: object
    _lasting: str | None
    _may_read_zero: bool

    @classmethod
    async def serve(
        cls, engine: Engine, found: chain.Chain, image: str, options: ConnectOptions, how: QemuServer
    ) -> Self:
        """Start a server and connect to it. image: its name for logs.

        Raises StorageError, ServerGone, ImageInUse, and Unavailable while what a killed daemon has left uses the image.
        """
        try:
            server = await _started(found, image, how)
        except ImageInUse:
            await leftovers.ended(how.run_dir, found.node)
            # In any case: what had the image may have ended before anybody looked.
            server = await _started(found, image, how)
        try:
            backend = await cls.open(
                engine,
                server.address,
                options,
                connections=how.connections,
                writable=how.writable,
                zero_unit=found.zero_unit,
                name=image,
            )
        except BaseException:
            await server.stop()
            raise
        backend._server = server
        backend._identity = found.identity
        backend._lasting = found.lasting
        backend._may_read_zero = how.writable and found.alone
        backend._client.found_unusable = lambda: reasons.found_damaged(image)
        server.on_marked(backend._found_damaged)
        return backend

    @property
    def info(self) -> BackendInfo:
        """Return what is known now; asks nobody."""
        return replace(super().info, identity=self._identity, lasting=self._lasting)

    async def reads_zero(self, op: Operation) -> bool:
        """Ask for all of the image, until data is found or something is written; then the answer stays False."""
        if self._may_read_zero and not (await self._ask_for_zeros(op) and not self._was_written()):
            self._may_read_zero = False
        return self._may_read_zero

    async def close(self) -> None:
        """Close the connections and end the server; the image is not open any more when this returns."""
        self._server.on_marked(_nothing)
        try:
            await super().close()
        finally:
            await self._server.stop()

    def _found_damaged(self) -> None:
        """Fail all later operations. Called in any thread."""
        self._client.unusable("the image is damaged")

    def _was_written(self) -> bool:
        return self._closed or bool(self._client.state.written)

    async def _ask_for_zeros(self, op: Operation) -> bool:
        info = self.info
        size, end = info.size, max(info.size - max(LAST, info.block_size), 0)
        try:
            return await self._are_zeros(op, end) and not any(await self._last(op, end, size - end))
        except StorageError as e:
            log.warning("not known whether %s reads as zeros: %s", self.name, e)
            return False

    async def _are_zeros(self, op: Operation, end: int) -> bool:
        if end > MAX_ASKED * STEP:
            return False
        offset = 0
        for _ in range(MAX_ASKED):
            if offset >= end:
                break
            length = min(STEP - offset % STEP, end - offset)
            found = await self._extents(op, offset, length, 1)
            if not all(extent.zero for extent in found):
                return False
            offset = found.end
        return offset >= end

    async def _last(self, op: Operation, offset: int, length: int) -> bytearray:
        """Read what is behind offset, without a look where data is, as qemu-nbd has for an answer in parts."""
        memory = bytearray(length)
        if length:
            await self._read(op, offset, memoryview(memory), lib.IOU_DENSE)
        return memory


def _nothing() -> None:
    pass


def _started(found: chain.Chain, image: str, how: QemuServer) -> Awaitable[QemuNbd]:
    return QemuNbd.start(
        found,
        image,
        run_dir=how.run_dir,
        writable=how.writable,
        connections=how.connections,
        bitmap=how.bitmap,
        answer_timeout=how.answer_timeout,
    )


class QemuImage(NamedTuple):
    """An image file and how it is to be opened.

    backing_chain: with the files below it. allowed: directories in which the files that it names may be. bitmap: what
    tells of changes. shared: other programs may use the image meanwhile.
    """

    path: str
    format: str
    backing_chain: bool
    allowed: Sequence[str]
    bitmap: str | None = None
    shared: bool = False


class ManagedBackend(QemuBackend):
    """Serve an image file with a format."""

    _path: str

    @classmethod
    async def start(
        cls,
        engine: Engine,
        image: QemuImage,
        options: ConnectOptions,
        *,
        run_dir: str,
        connections: int,
        writable: bool,
    ) -> Self:
        """Check the image's header, start a server and connect to it. Raises StorageError, ServerGone, ImageInUse.

        engine: asks the image's file system. Without its bitmap an image is served, too: only who asks for what has
        changed is refused, because nobody knows.
        """
        found = await in_thread(
            lambda: chain.inspect(
                image.path,
                image.format,
                backing_chain=image.backing_chain,
                allowed=image.allowed,
                shared=image.shared,
            )
        )
        how = QemuServer(run_dir, connections, writable, image.bitmap)
        try:
            backend = await cls.serve(engine, found, image.path, options, how)
        except (NotFound, BitmapInUse) as e:
            log.warning("%s is served without the bitmap %s: %s", image.path, image.bitmap, e)
            backend = await cls.serve(engine, found, image.path, options, how._replace(bitmap=None))
            backend._no_bitmap = e.with_traceback(None)
        backend._path = image.path
        return backend

    async def available(self, op: Operation) -> int | None:
        """Return what is free in the file system of the image file, and what the file has of it; None: not known."""
        try:
            file = await FileBackend.open(self._engine, self._path, writable=False)
        except StorageError:  # nothing has this name any more
            return None
        try:
            return await file.available(op)
        finally:
            await file.close()
