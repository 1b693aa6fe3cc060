# SPDX-License-Identifier: Apache-2.0
"""The text of all metrics, for Prometheus."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

#: The format that each version of Prometheus reads (prometheus.io/docs/instrumenting/exposition_formats).
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The same text is used again for MIN_AGE seconds, or for AGE_FACTOR times the time that making it took, if longer.
MIN_AGE = 0.5
AGE_FACTOR = 20


class _Collected(Collector):
    """Families of metrics as prometheus_client wants them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exposition:
    """Make the text, for one request at a time. `collect` returns the families of metrics.

    Clients that ask often get the same text, so that they take at most 1/AGE_FACTOR of a processor.
    """

    def __init__(self, collect: Callable[[], Awaitable[Iterable[Metric]]]) -> None:
        self._collect = collect
        self._turn = asyncio.Lock()
        self._text = b""
        self._fresh_until = 0.0

    async def text(self, *, fresh: bool) -> bytes:
        """Return the text. Pass fresh=True, for trusted clients only, to always make a new one."""
        async with self._turn:
            began = time.monotonic()
            if fresh or began >= self._fresh_until:
                self._text = generate_latest(_Collected(await self._collect()))
                ended = time.monotonic()
                self._fresh_until = ended + max(MIN_AGE, AGE_FACTOR * (ended - began))
            return self._text
