# SPDX-License-Identifier: Apache-2.0
"""Counts of requests and bytes that each service has served, by C's lanes and by Python.

Each connection keeps its own counts, which are read when the sums are asked for. So a request takes no lock here.
"""

import threading
from enum import StrEnum
from typing import NamedTuple, Protocol


class By(StrEnum):
    """What serves requests: a lane in C, or Python."""

    LANE = "lane"
    PYTHON = "python"


class Count(NamedTuple):
    """Requests, and bytes received and sent. Bytes are those of HTTP or NBD, without the overhead of TLS.

    An HTTP request that fails in C is counted for Python, which answers it. Bytes are counted for the side that moved
    them: C may receive the bytes of a request that Python serves.
    """

    requests: int = 0
    received: int = 0
    sent: int = 0

    def plus(self, other: "Count") -> "Count":
        """Return the sum."""
        return Count(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "Count") -> "Count":
        """Return the difference."""
        return Count(*(a - b for a, b in zip(self, other, strict=True)))


class Source(Protocol):
    """A connection, or a lane that serves one."""

    def served(self) -> Count:
        """Return its counts so far. Called in any thread."""
        ...


class Served:
    """The sums of all connections' counts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, By], Count] = {}
        self._sources: dict[Source, tuple[str, By]] = {}

    def begin(self, service: str, by: By, source: Source) -> None:
        """Include a source in the sums until end()."""
        with self._lock:
            self._sources[source] = (service, by)

    def end(self, source: Source) -> None:
        """Add the final counts of a source, and forget it. Does nothing if it has not begun or has ended."""
        with self._lock:
            key = self._sources.pop(source, None)
            if key is not None:
                self._ended[key] = self._ended.get(key, Count()).plus(source.served())

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return requests, received and sent bytes, by service, then by `By`."""
        with self._lock:
            sums = dict(self._ended)
            for source, key in self._sources.items():
                sums[key] = sums.get(key, Count()).plus(source.served())
        services = sorted({service for service, _ in sums})
        return {s: {by: sums.get((s, by), Count())._asdict() for by in By} for s in services}
