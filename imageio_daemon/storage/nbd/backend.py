# SPDX-License-Identifier: Apache-2.0
"""Exports of NBD servers, and the first large request to a server on this host, which makes its later ones cheaper."""

import asyncio
import errno
import logging
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from ioutil_ext import lib

from ...errors import Error, ServerRefuses, StorageError, Unusable
from ...nbdproto.client_negotiation import Agreed
from ...nbdproto.constants import ExportFlag
from ...units import MiB
from ...urls.nbd import NbdAddress
from ..backend import Backend, BackendInfo
from ..engine import Engine
from ..operation import Operation
from .client import DRAIN_TIMEOUT, NbdClient
from .client_handshake import ConnectOptions
from .nbd_session import open_session

log = logging.getLogger(__name__)


class NbdBackend(Backend):
    """Serve one export. Backend has the contract.

    C has the connections. When the server is gone, running operations fail, and the next operation makes Python connect
    again. If there were unflushed changes, they may be lost, so every flush fails from then on.
    """

    #: Whether a range that stays allocated can be zeroed without data I/O, if other ranges can.
    fast_allocation: ClassVar[bool] = True
    zero_flags = lib.IOU_LAYERS

    def __init__(self, engine: Engine, client: NbdClient, name: str, zero_unit: int | None) -> None:
        super().__init__(engine, client.handle, name)
        self._client = client
        self._zero_unit = zero_unit
        self._warm_up: WarmUp | None = None

    @classmethod
    async def open(
        cls,
        engine: Engine,
        address: NbdAddress,
        options: ConnectOptions,
        *,
        connections: int,
        writable: bool,
        zero_unit: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Connect to a server.

        A range of whole units of `zero_unit` bytes is sure to be zeroed without data I/O; with None, no range is.
        `name` is for logs of operations that fail or hang; the default is the server's address. Raises ServerGone,
        StorageError if the export is read-only and must be written, and Unusable if the server refuses it or its size
        cannot be served. When Python connects again later, a refusal is not final, because a server may start before
        its exports are there.
        """
        server = f"NBD server {address}"
        try:
            session = await open_session(address, options, connections)
        except ServerRefuses as e:
            raise Unusable(e.told, server, str(e.reason)) from None
        agreed = session.agreed
        failure = _unusable(agreed, server, writable=writable)
        if failure is not None:
            session.leave()
            raise failure
        if writable and not agreed.can(ExportFlag.SEND_FLUSH):
            log.warning("%s cannot flush: writes may be lost, and each flush fails", server)
        if options.dirty and name is None and not agreed.bitmaps:
            log.warning("%s offers no dirty bitmap, so changed ranges are not known", server)
        name = name or server
        client = NbdClient(
            address, options, connections, session, name, zero_unit=zero_unit, allocation=cls.fast_allocation
        )
        backend = cls(engine, client, name, zero_unit)
        if address.socket and min(agreed.size, agreed.sizes.maximum) >= WARM_UP:
            backend._warm_up = WarmUp(backend)
        return backend

    @property
    def info(self) -> BackendInfo:
        """Return the present properties, without I/O."""
        agreed = self._client.agreed
        fast = self._zero_unit is not None and agreed.can(ExportFlag.SEND_FAST_ZERO)
        return BackendInfo(
            size=agreed.size,
            block_size=agreed.sizes.minimum,
            can_grow=False,
            can_fast_zero=fast,
            can_fast_allocate=fast and self.fast_allocation,
            can_flush=agreed.can(ExportFlag.SEND_FLUSH),
            unflushed=self._unflushed(),
            lasting=repr(self._client.address),
        )

    def interrupt(self) -> None:
        """End cancelled operations of which nothing was sent. Others wait for their replies."""
        super().interrupt()
        if not self._closed:
            self._client.interrupt()

    def explain(self, end: Any) -> Error | None:
        """Return the error that the server has sent, or why it is gone."""
        return None if self._closed else self._client.explain(end)

    async def close(self) -> None:
        """End the session in order. No connection is left when this returns. Later calls do nothing."""
        if not self._closed:
            await asyncio.shield(self._say_goodbye())

    async def _say_goodbye(self) -> None:
        in_order = self._warm_up is None or await self._warm_up.end()
        await self._client.close(DRAIN_TIMEOUT if in_order else 0)
        if not self._closed:
            self._closed = True
            self._client.free()

    def _unflushed(self) -> bool:
        return self._closed or bool(self._client.state.unflushed)

    def _bitmaps(self) -> Sequence[str]:
        return self._client.agreed.bitmaps


def _unusable(agreed: Agreed, server: str, *, writable: bool) -> StorageError | None:
    """Return why an export cannot be served, if it cannot."""
    if writable and agreed.can(ExportFlag.READ_ONLY):
        return StorageError(errno.EROFS, server, "the export is read-only")
    if agreed.size % agreed.sizes.minimum:
        why = f"{agreed.size} bytes are not whole blocks of {agreed.sizes.minimum}"
        return Unusable("The image does not have whole blocks", server, why)
    return None


#: Bytes of the request: twice as many as any other request has.
WARM_UP = 8 * MiB
#: Seconds to wait for the reply when the image is closed. After that, the connection is closed without a goodbye.
CLOSE_TIMEOUT = 1.0
#: The memory for the replies of all servers, which nobody looks at. It costs the process 8 MiB, and nothing before the
#: first reply. A buffer of the pool would keep other operations waiting until the server answers.
UNSEEN = memoryview(mmap.mmap(-1, WARM_UP))


class WarmUp:
    """Read many zeros from a server in one request, while others run. Nothing waits for it, and it may fail.

    qemu-nbd allocates the memory of each request from glibc. glibc maps new memory for a request as large as the
    largest so far, and unmaps it afterwards, so that the kernel has to clear every page of every request. After one
    request that is larger than all others, the others get memory that was used before. This request asks for zeros,
    because the server only tells where zeros are, and does not send them.
    """

    def __init__(self, image: Backend) -> None:
        self._image = image
        self._op = Operation()
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        with suppress(Error):
            # IOU_NOW: these fail at once if the server is gone.
            found = await self._image.list_extents(self._op, 0, WARM_UP, 1, lib.IOU_LAYERS | lib.IOU_NOW)
            self._op.require_running()  # end() may not wait for this, and then the image is closed
            if found.end >= WARM_UP and all(extent.zero for extent in found):
                await self._image.read_into(self._op, 0, UNSEEN, lib.IOU_WHOLE | lib.IOU_NOW)

    async def end(self) -> bool:
        """Cancel the warm-up, and return whether it has ended within CLOSE_TIMEOUT. If not, cut the session."""
        self._op.cancel()
        self._image.interrupt()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        return bool(done)
