# SPDX-License-Identifier: Apache-2.0
"""Images as qcow2 files that are made as they are sent."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager, closing

from ..errors import Unavailable
from ..storage.backend import Context
from ..storage.bucket import SMALL
from ..storage.buffers import BufferPool
from ..storage.operation import Kind
from ..storage.packed import PackedDisk, map_size
from ..transfers.transfer import Transfer
from ..units import MiB
from . import operations

#: Bytes of all maps at a time: those of 16 of the largest disks, or of 32 of 1 TiB. They are not of the buffers for
#: checksums, which a client that reads slowly would keep for hours.
MAPS = 64 * MiB


@asynccontextmanager
async def packed(transfer: Transfer, maps: BufferPool, *, part: bool) -> AsyncIterator[PackedDisk]:
    """Lay out the present content of the image as a file, and close the file after the block.

    The memory of the map counts as a buffer of the transfer, which stays untouched: C allocates the map itself. A lane
    whose client is gone may keep that for a moment longer. OperationOptions explains `part`. Raises InvalidRequest if
    the disk is too large, Unavailable if there is no memory; Shortened, Forbidden, Canceled, StorageError.
    """
    size = await operations.size(transfer, part=part)
    buffer = maps.try_acquire(map_size(size), transfer)
    if buffer is None:  # it may be hours until there is one
        raise Unavailable("There is no memory for the request now")
    with ExitStack() as stack:
        stack.callback(buffer.release)
        async with operations.running(transfer, None, kind=Kind.EXTENTS, part=True) as (op, backend):
            await transfer.bucket.take(SMALL)
            generation = backend.generation
            disk = stack.enter_context(closing(PackedDisk(backend, size)))
            if size:
                async with aclosing(backend.extents(op, 0, size, Context.ZERO)) as lists:
                    async for found in lists:
                        disk.tell(found)
            disk.place(generation if backend.generation == generation else 0)
        yield disk
