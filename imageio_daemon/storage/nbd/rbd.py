# SPDX-License-Identifier: Apache-2.0
"""Images on Ceph, by qemu's rbd driver (librbd), without a device on this host."""

import errno
from contextlib import aclosing
from typing import NamedTuple, Self

from ...errors import NotFound, StorageError
from ...image.chain import Chain
from ...image.extents import ExtentStream
from ...urls.rbd import RbdAddress
from ..backend import Context
from ..engine import Engine
from ..operation import Operation
from . import changes
from .client_handshake import ConnectOptions
from .process import QemuServer
from .qemu_backend import QemuBackend

#: Bytes of a sector. librbd zeroes whole sectors by requests without data.
ZERO_UNIT = 512
#: Seconds for a cluster to answer when an image is opened. librados would wait for minutes, and ignores signals then.
#: So the process is killed, which has written nothing.
ANSWER_TIMEOUT = 20.0


class RbdImage(NamedTuple):
    """An image and how to open it.

    `conf` and `user` are for the cluster. `allowed` is where images may be; see is_in(). `since` is the snapshot to
    compare with.
    """

    address: RbdAddress
    conf: str
    user: str
    allowed: tuple[str, ...]
    since: str | None = None


class RbdBackend(QemuBackend):
    """Serve an image on Ceph, or a snapshot. Backend has the contract.

    No write waits in a cache of this host: the answer to a write comes when the OSDs have it. So after the last answer,
    no write of this host can overtake one of another host.
    """

    #: librbd keeps space allocated by letting the OSDs write zeros.
    fast_allocation = False
    _image: RbdImage

    @classmethod
    async def start(cls, engine: Engine, image: RbdImage, options: ConnectOptions, how: QemuServer) -> Self:
        """Start a server and connect to it. Raises StorageError, ServerGone.

        Waits at most ANSWER_TIMEOUT for a cluster that does not answer.
        """
        address = image.address
        if not address.is_in(image.allowed):
            raise StorageError(
                errno.EPERM, f"open {address}", "pool", f"({address.where} is not in [backend_rbd] allowed_pools)"
            )
        node = {"driver": "raw", "file": address.node(image.conf, image.user)}
        lasting = f"rbd {image.conf} {address}"
        found = Chain(node=node, lasting=lasting, identity=lasting, zero_unit=ZERO_UNIT, alone=True)
        backend = await cls.serve(engine, found, str(address), options, how._replace(answer_timeout=ANSWER_TIMEOUT))
        backend._image = image
        # Only rbd(8) compares with a snapshot, and C cannot ask it.
        backend._no_bitmap = NotFound("What has changed in an image on Ceph is told over HTTP only")
        return backend

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Yield librbd's extents. Raises NotFound for Context.DIRTY if the ticket names no snapshot to compare with."""
        async with aclosing(self._lists(op, offset, length, context)) as lists:
            async for found in lists:
                yield found

    def _lists(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        if context is not Context.DIRTY:
            return super().extents(op, offset, length, context)
        image = self._image
        if image.since is None:
            raise NotFound("The ticket names no snapshot with which the image could be compared")
        command = changes.command(image.address.options(image.conf, image.user), image.since)
        return changes.extents(command, str(image.address), op, offset, min(offset + length, self.info.size))
