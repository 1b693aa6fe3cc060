# SPDX-License-Identifier: Apache-2.0
"""Sums of counts over sources that come and go: connections, lanes, transfers. `Served` has those of the services.

Each source keeps its own counts. They are read when a caller asks for the sums, so counting itself costs nothing more.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar


class Addable(Protocol):
    """Counts that can be added up."""

    def plus(self: "C", other: "C") -> "C":
        """Return the sum."""


C = TypeVar("C", bound=Addable)
K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Hashable)


class Sums(Generic[K, S, C]):
    """The sums by key, of live sources and of those that have ended. They never decrease.

    `none` has zero counts, and `counts` returns the counts of a source so far.
    """

    def __init__(self, none: C, counts: Callable[[S], C]) -> None:
        self._none = none
        self._counts = counts
        self._ended: dict[K, C] = {}
        self._sources: dict[S, K] = {}
        self._begun: Counter[K] = Counter()

    def begin(self, key: K, source: S) -> None:
        """Include a source in the sums until end()."""
        self._sources[source] = key
        self._begun[key] += 1

    def end(self, source: S) -> None:
        """Add the final counts of a source, and forget it. Does nothing if it has not begun or has ended."""
        if source in self._sources:
            key = self._sources.pop(source)
            self._ended[key] = self._ended.get(key, self._none).plus(self._counts(source))

    def sums(self) -> dict[K, C]:
        """Return the sums by key, without keys that have had no source."""
        sums = self.ended()
        for source, key in self._sources.items():
            sums[key] = sums.get(key, self._none).plus(self._counts(source))
        return sums

    def ended(self) -> dict[K, C]:
        """Return the sums of the sources that have ended. Add the counts of sources() to get sums()."""
        return dict(self._ended)

    def sources(self) -> dict[S, K]:
        """Return the live sources, with their keys."""
        return self._sources.copy()

    def begun(self) -> Counter[K]:
        """Return the number of sources so far, by key."""
        return self._begun.copy()


class By(StrEnum):
    """What serves requests: a lane in C, or Python."""

    LANE = "lane"
    PYTHON = "python"


class Count(NamedTuple):
    """Requests, and bytes received and sent. Bytes are those of HTTP or NBD, without the overhead of TLS.

    `refused` requests were answered with a fault of the client, 4xx in HTTP. `failed` ones were answered with a fault
    of the server, 5xx in HTTP, or with any error in NBD. An HTTP request that fails in C counts for Python, which
    answers it. Bytes count for the side that has moved them. C may receive the bytes of a request that Python serves.
    """

    requests: int = 0
    received: int = 0
    sent: int = 0
    refused: int = 0
    failed: int = 0

    def plus(self, other: "Count") -> "Count":
        """Return the sum."""
        return Count(*(a + b for a, b in zip(self, other, strict=True)))


class Counted(Hashable, Protocol):
    """A connection, or a lane that serves one."""

    def served(self) -> Count:
        """Return the counts of this connection or lane so far."""


class Served(Sums[tuple[str, By], Counted, Count]):
    """The sums of all connections' counts, by service and by `By`."""

    def __init__(self) -> None:
        super().__init__(Count(), lambda source: source.served())

    def as_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the sums by service, then by `By`, as the control service sends them."""
        sums = self.sums()
        services = sorted({service for service, _ in sums})
        return {s: {by: sums.get((s, by), Count())._asdict() for by in By} for s in services}
