# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon is ready to serve with all that is configured.

Storage does not count: a server that hangs does not concern transfers of images on other storage.
"""

from collections.abc import Sequence

from ..net.accepting import Acceptor
from ..runtime.degraded import Degraded
from ..transfers.store import TransferStore
from .liveness import Liveness

#: Seconds in which the lanes have to answer.
LANES_TIMEOUT = 2.0


class Health:
    """Check what the daemon needs to serve as it is configured. Use this on the event loop.

    There is no check for the end of the daemon: it closes its listeners first, so no request can ask.
    """

    def __init__(self, store: TransferStore, liveness: Liveness, degraded: Degraded) -> None:
        self._store = store
        self._liveness = liveness
        self._degraded = degraded
        self._started = False
        self._listeners: Sequence[tuple[str, Acceptor]] = ()

    def serves(self, listeners: Sequence[tuple[str, Acceptor]]) -> None:
        """Note that the daemon serves. Pass its listeners with the names of their services."""
        self._started, self._listeners = True, listeners

    async def checks(self) -> dict[str, str]:
        """Return the names of all checks. Each has the reason why it fails, or ""."""
        return {
            "service": "draining" if self._store.drain is not None else "" if self._started else "starting",
            "listeners": self._silent(),
            "lanes": "" if await self._liveness.answered(LANES_TIMEOUT) else "no answer",
            **{str(feature): why for feature, why in self._degraded.reasons().items()},
        }

    def _silent(self) -> str:
        closed = [service for service, listener in self._listeners if not listener.is_serving()]
        return f"no connections are accepted: {', '.join(closed)}" if closed else ""
