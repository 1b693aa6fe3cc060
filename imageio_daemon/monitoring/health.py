# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon is ready to serve.

Storage does not count: an image on a server that hangs does not concern transfers of other images.
"""

import time
from collections.abc import Sequence

from ..net.accepting import Listener
from ..net.tls_contexts import ServerTls
from ..transfers.store import TransferStore
from .liveness import Liveness

#: Seconds in which each event loop, and the lanes, have to answer.
LOOP_TIMEOUT = 2.0


class Health:
    """Check what the daemon needs to serve. Used on the first loop. liveness: of loops and lanes. tls: None: none.

    At the end the daemon closes its listeners first, so there is nobody to tell that it stops.
    """

    def __init__(self, store: TransferStore, liveness: Liveness, tls: ServerTls | None) -> None:
        self._store = store
        self._liveness = liveness
        self._tls = tls
        self._started = False
        self._listeners: Sequence[tuple[str, Listener]] = ()

    def serves(self, listeners: Sequence[tuple[str, Listener]]) -> None:
        """Note that the daemon serves. listeners: with the names of their services."""
        self._started, self._listeners = True, listeners

    async def checks(self) -> dict[str, str]:
        """Return the name of each check, with the reason why it fails, or ""."""
        return {
            "service": "draining" if self._store.drain is not None else "" if self._started else "starting",
            "listeners": self._silent(),
            "loops": await self._silent_loops(),
            "certificate": self._expired(),
        }

    def _silent(self) -> str:
        closed = [service for service, listener in self._listeners if not listener.is_serving()]
        return f"no connections are accepted: {', '.join(closed)}" if closed else ""

    async def _silent_loops(self) -> str:
        silent = await self._liveness.silent(LOOP_TIMEOUT)
        return f"no answer from {', '.join(silent)}" if silent else ""

    def _expired(self) -> str:
        return "expired" if self._tls is not None and self._tls.context.expires <= time.time() else ""
