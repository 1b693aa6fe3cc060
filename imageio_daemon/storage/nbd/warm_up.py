# SPDX-License-Identifier: Apache-2.0
"""The first large request to an NBD server on this host, which makes its later ones cheaper."""

import asyncio
import mmap
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from ...errors import Error
from ...image.extents import ExtentList
from ...units import MiB
from ..backend import Operation

#: Bytes of it: twice what a request has at most.
WARM_UP = 8 * MiB
#: Seconds for its end when the image is closed. A server that keeps its answer back for long is left without a goodbye.
CLOSE_TIMEOUT = 1.0
#: What is received goes here, for all servers and loops: nobody looks at it. So it costs the process 8 MiB, and nothing
#: before the first reply; a buffer of the pool would keep operations waiting as long as a server does not answer.
UNSEEN = memoryview(mmap.mmap(-1, WARM_UP))


class Asked(Protocol):
    """The image that is asked for."""

    def first_extent(self, op: Operation, length: int) -> Awaitable[ExtentList]:
        """Return the first extent of the image, if the server is there."""
        ...

    def read_whole(self, op: Operation, memory: memoryview) -> Awaitable[object]:
        """Read the beginning of the image by one request, if the server is there."""
        ...

    def interrupt(self) -> None:
        """End what was cancelled and not sent."""
        ...


class WarmUp:
    """Read many zeros from a server at once, beside other requests. Nothing waits for it, and it may fail.

    glibc, from which qemu-nbd has the memory of each request, maps and unmaps requests as large as the largest so far
    one by one: the kernel has to clear every page of every request. After one that is larger than all the others these
    get memory that was used before. Zeros, because they are told and not sent.
    """

    def __init__(self, image: Asked) -> None:
        self._image = image
        self._op = Operation()
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        with suppress(Error):
            found = await self._image.first_extent(self._op, WARM_UP)
            if found.end >= WARM_UP and all(extent.zero for extent in found):
                await self._image.read_whole(self._op, UNSEEN)

    async def end(self) -> bool:
        """End it. False: it has not ended in CLOSE_TIMEOUT, and the session has to be left at once."""
        self._op.cancel()
        self._image.interrupt()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        return bool(done)
