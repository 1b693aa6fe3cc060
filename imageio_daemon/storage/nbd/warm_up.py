# SPDX-License-Identifier: Apache-2.0
"""The first large request to an NBD server on this host, which makes its later ones cheaper."""

import asyncio
import mmap
from contextlib import suppress

from ...errors import Error
from ...nbdproto.constants import Command, CommandFlag
from ...units import MiB
from ..backend import Context, Operation
from ..work import Work
from .connection import CLOSE_TIMEOUT, Call
from .session import ClientSession

#: Bytes of it: twice what a request has at most.
WARM_UP = 8 * MiB
#: What is received goes here, for all servers and loops: nobody looks at it. So it costs the process 8 MiB, and nothing
#: before the first reply; a buffer of the pool would keep operations waiting as long as a server does not answer.
_UNSEEN = memoryview(mmap.mmap(-1, WARM_UP))


class WarmUp:
    """Read many zeros from a server at once, beside other requests. Nothing waits for it, and it may fail.

    glibc, from which qemu-nbd has the memory of each request, maps and unmaps requests as large as the largest so far
    one by one: the kernel has to clear every page of every request. After one that is larger than all the others these
    get memory that was used before. Zeros, because they are told and not sent.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._op = Operation()
        self._work = Work(self._ask())

    async def _ask(self) -> None:
        agreed = self._session.agreed
        if min(agreed.size, agreed.sizes.maximum) < WARM_UP:
            return
        with suppress(Error):
            found = await self._session.status(self._op, 0, WARM_UP, Context.ZERO, CommandFlag.REQ_ONE)
            if found.end >= WARM_UP and all(extent.zero for extent in found):
                await self._session.run([Call(self._op, Command.READ, 0, WARM_UP, view=_UNSEEN)])

    async def end(self) -> None:
        """Let the session be closed: a server that keeps its answer back for long is left without a goodbye."""
        self._op.cancel()
        self._session.drop_canceled()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._work
        except TimeoutError:
            self._session.abort("it does not answer in time")
