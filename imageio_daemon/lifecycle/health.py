# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon is ready to serve with all that is configured, and whether the threads of its lanes go on.

Storage does not count: a server that hangs does not concern transfers of images on other storage, and a lane that waits
for storage holds no lock. The event loop needs no check, as the callers run on it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ..net.serving import Acceptor
from ..runtime.background import start_thread
from ..runtime.degraded import Degraded
from ..transfers.store import TransferStore

log = logging.getLogger(__name__)

#: Seconds in which the lanes have to answer.
LANES_TIMEOUT = 2.0


class Liveness:
    """Ask the lanes for an answer. Use this on the event loop. `look` is Lanes.look()."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._asked: Future[object] = Future()
        self._asked.set_result(None)  # nothing waits

    def ask(self) -> bool:
        """Ask the lanes, and return whether the previous question was answered.

        Returns False if that question still waits; then this does not ask again. Also returns False if `look` raised an
        exception, and logs that. The watchdog and the checks of health share the question.
        """
        if not self._asked.done():
            return False
        error = self._asked.exception()
        if error is not None:
            log.error("lanes cannot be asked", exc_info=error)
        self._asked = start_thread(self._look)
        return error is None

    async def answered(self, timeout: float) -> bool:
        """Ask the lanes, and return whether they answer within `timeout` seconds."""
        self.ask()
        answer = asyncio.wrap_future(self._asked)
        done, _ = await asyncio.wait([answer], timeout=timeout)
        answer.cancel()  # which ends no thread
        return answer in done and answer.exception() is None


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
