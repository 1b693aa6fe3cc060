# SPDX-License-Identifier: Apache-2.0
"""Counts of requests and bytes that each service has served, by C's lanes and by Python."""

from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple, Protocol

from .sums import Sums


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
