# SPDX-License-Identifier: Apache-2.0
"""Images that qemu opens, in a qemu-nbd that the daemon starts for each transfer."""

import logging
from dataclasses import replace
from typing import Self

from ioutil_ext import lib

from ...errors import BitmapInUse, ImageInUse, NotFound, StorageError
from ...image import chain
from ...image.chain import QemuImage
from ...runtime.background import in_thread
from ...units import GiB, MiB
from ..backend import BackendInfo
from ..engine import Engine
from ..file import FileBackend
from ..operation import Operation
from . import leftovers, reasons
from .backend import NbdBackend
from .client_handshake import ConnectOptions
from .process import QemuNbd, QemuServer

log = logging.getLogger(__name__)

#: Bytes of one question whether an image reads as zeros, and most questions for one image, together more than 1 TiB. A
#: question to Ceph takes 0.4 ms, so it asks for as much as any server takes. It is about whole objects, which have at
#: most 32 MiB, because librbd before 17 counts from the wrong place if a question begins within one.
STEP = 2 * GiB - 32 * MiB
MAX_ASKED = 600
#: Bytes at the end that are read instead. qemu-nbd 7.2 ends with an assertion when it looks for data at the end of an
#: image on Ceph whose size is not a multiple of sectors.
LAST = 512


class QemuBackend(NbdBackend):
    """Serve an image through a qemu-nbd that lives as long as this object. Backend has the contract."""

    _server: QemuNbd
    _identity: object
    _lasting: str | None
    _may_read_zero: bool

    @classmethod
    async def serve(
        cls, engine: Engine, found: chain.Chain, image: str, options: ConnectOptions, how: QemuServer
    ) -> Self:
        """Start a server and connect to it. `image` is the image's name in logs.

        Raises StorageError, ServerGone, ImageInUse, and Unavailable while a server of a killed daemon uses the image.
        """
        try:
            server = await QemuNbd.start(found, image, how)
        except ImageInUse:
            await leftovers.ended(how.run_dir, found.node)
            # Try again even if none was found: it may have ended before the search.
            server = await QemuNbd.start(found, image, how)
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
        """Return the present properties, without I/O."""
        return replace(super().info, identity=self._identity, lasting=self._lasting)

    async def reads_zero(self, op: Operation) -> bool:
        """Ask for the whole image. After data was found or something was written, the answer stays False."""
        if self._may_read_zero and not (await self._ask_for_zeros(op) and not self._was_written()):
            self._may_read_zero = False
        return self._may_read_zero

    async def close(self) -> None:
        """Close the connections and end the server. When this returns, the image is not open any more."""
        self._server.on_marked(_nothing)
        try:
            await super().close()
        finally:
            await self._server.stop()

    def _found_damaged(self) -> None:
        """Fail all later operations. Thread-safe."""
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
            found = await self.list_extents(op, offset, length, 1)
            if not all(extent.zero for extent in found):
                return False
            offset = found.end
        return offset >= end

    async def _last(self, op: Operation, offset: int, length: int) -> bytearray:
        """Read the bytes from offset on, without asking qemu-nbd to look where data is, as it does for other reads."""
        memory = bytearray(length)
        if length:
            await self.read_into(op, offset, memoryview(memory), lib.IOU_DENSE)
        return memory


def _nothing() -> None:
    pass


class ManagedBackend(QemuBackend):
    """Serve an image file with a format."""

    _path: str

    @classmethod
    async def start(cls, engine: Engine, image: QemuImage, options: ConnectOptions, how: QemuServer) -> Self:
        """Check the image's header, start a server and connect to it. Raises StorageError, ServerGone, ImageInUse.

        An image without the bitmap is served, too. Only requests for dirty extents are refused.
        """
        found = await in_thread(lambda: chain.inspect(image))
        how = how._replace(bitmap=image.bitmap)
        try:
            backend = await cls.serve(engine, found, image.path, options, how)
        except (NotFound, BitmapInUse) as e:
            log.warning("%s is served without the bitmap %s: %s", image.path, image.bitmap, e)
            backend = await cls.serve(engine, found, image.path, options, how._replace(bitmap=None))
            backend._no_bitmap = e.with_traceback(None)
        backend._path = image.path
        return backend

    async def available(self, op: Operation) -> int | None:
        """Return the bytes that are free in the image file's file system or already the file's, if that is known."""
        try:
            file = await FileBackend.open(self._engine, self._path, writable=False)
        except StorageError:  # no file has this name any more
            return None
        try:
            return await file.available(op)
        finally:
            await file.close()
