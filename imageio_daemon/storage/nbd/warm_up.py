# SPDX-License-Identifier: Apache-2.0
"""The first large request to an NBD server on this host, which makes its later ones cheaper."""

import asyncio
import mmap
from contextlib import suppress

from ioutil_ext import lib

from ...errors import Error
from ...units import MiB
from ..backend import Backend
from ..operation import Operation

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
            if found.end >= WARM_UP and all(extent.zero for extent in found):
                await self._image.read_into(self._op, 0, UNSEEN, lib.IOU_WHOLE | lib.IOU_NOW)

    async def end(self) -> bool:
        """Cancel the warm-up, and return whether it has ended within CLOSE_TIMEOUT. If not, cut the session."""
        self._op.cancel()
        self._image.interrupt()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        return bool(done)
