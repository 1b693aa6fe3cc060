# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon is ready to serve.

Storage does not count: an image on a server that hangs does not concern transfers of other images.
"""

import asyncio
import time
from collections.abc import Sequence

from ..net.loops import Listener, ServingLoop
from ..net.tls_contexts import ServerTls
from ..transfers.store import TransferStore

#: Seconds in which each event loop has to run a callback.
LOOP_TIMEOUT = 2.0


class Health:
    """Check what the daemon needs to serve. Used on the first loop. tls: None: there is none.

    At the end the daemon closes its listeners first, so there is nobody to tell that it stops.
    """

    def __init__(self, store: TransferStore, tls: ServerTls | None) -> None:
        self._store = store
        self._tls = tls
        self._started = False
        self._loops: Sequence[ServingLoop] = ()
        self._listeners: Sequence[tuple[str, Listener]] = ()
        self._turns: dict[ServingLoop, asyncio.Task[None]] = {}

    def serves(self, loops: Sequence[ServingLoop], listeners: Sequence[tuple[str, Listener]]) -> None:
        """Note that the daemon serves. listeners: with the names of their services."""
        self._started, self._loops, self._listeners = True, loops, listeners

    async def checks(self) -> dict[str, str]:
        """Return the name of each check, with the reason why it fails, or ""."""
        return {
            "service": "draining" if self._store.drain is not None else "" if self._started else "starting",
            "listeners": self._silent(),
            "loops": await self._hanging(),
            "certificate": self._expired(),
        }

    def _silent(self) -> str:
        closed = [service for service, listener in self._listeners if not listener.is_serving()]
        return f"no connections are accepted: {', '.join(closed)}" if closed else ""

    async def _hanging(self) -> str:
        """Let each loop run a callback. One that hangs has one of ours at a time, however often this is called."""
        for loop in self._loops:
            if loop not in self._turns:
                task = self._turns[loop] = asyncio.create_task(loop.run(asyncio.sleep(0)))
                task.add_done_callback(lambda _, loop=loop: self._turns.pop(loop))  # type: ignore[misc]
        if self._turns:
            await asyncio.wait(list(self._turns.values()), timeout=LOOP_TIMEOUT)
        return f"{len(self._turns)} of {len(self._loops)} event loops do not turn" if self._turns else ""

    def _expired(self) -> str:
        return "expired" if self._tls is not None and self._tls.context.expires <= time.time() else ""
