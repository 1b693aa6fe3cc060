# SPDX-License-Identifier: Apache-2.0
"""What is measured, and what is to be reached."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

SIZES = (4 * KiB, 64 * KiB, 256 * KiB, 1 * MiB, 64 * MiB)

#: From here on a transfer is a stream: bytes are counted, not requests, and the disk may be what limits it.
STREAMING = 1 * MiB


@dataclass(frozen=True)
class Case:
    """Requests of one kind."""

    operation: str  # put, get or zero
    size: int  # bytes of each request
    transport: str  # tls or unix
    connections: int
    storage: str  # file or loop

    @property
    def work(self) -> str:
        """Name the requests and the connections, not the storage."""
        service = "TLS" if self.transport == "tls" else "unix"
        return f"{self.operation.upper()} {size_text(self.size)} {service} {self.connections}"

    @property
    def name(self) -> str:
        return f"{self.work} {self.storage}"

    @property
    def streams(self) -> bool:
        return self.size >= STREAMING and self.operation != "zero"


@dataclass(frozen=True)
class Goal:
    """The ratios ours/theirs that a case shall reach; None: not asked for."""

    case: Case
    rate: float | None = None
    cpu: float | None = None
    memory: float | None = None


def size_text(size: int) -> str:
    """Write a number of bytes with the largest unit that divides it."""
    for unit, name in ((MiB, "MiB"), (KiB, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def connections_text(count: int) -> str:
    """Write a number of connections."""
    return f"{count} connection{'s' if count > 1 else ''}"


GOALS = (
    Goal(Case("put", 64 * MiB, "tls", 1, "file"), 1.3, 1.05),
    Goal(Case("put", 64 * MiB, "tls", 4, "file"), 1.0, 1.15),
    Goal(Case("get", 64 * MiB, "tls", 1, "file"), 1.05, 1.1),
    Goal(Case("put", 64 * MiB, "unix", 1, "file"), 1.1, 1.2),
    Goal(Case("put", 64 * MiB, "unix", 4, "file"), 0.95, 1.2),
    Goal(Case("put", 1 * MiB, "tls", 4, "file"), 1.2, 0.85),
    Goal(Case("put", 256 * KiB, "tls", 4, "file"), 1.6, 0.6),
    Goal(Case("put", 64 * KiB, "tls", 4, "file"), 1.5, 0.55),
    Goal(Case("get", 64 * KiB, "tls", 4, "file"), 1.5, 0.55),
    Goal(Case("put", 4 * KiB, "tls", 4, "file"), 2.5, 0.4),
    Goal(Case("zero", 1 * MiB, "tls", 1, "file"), 2.0, 0.4),
    Goal(Case("put", 64 * MiB, "tls", 8, "file"), memory=1.5),
)

#: Where both servers reach this part of the disk's own rate, parity is enough.
AT_THE_DISK = 0.9
PARITY = 0.95


def all_cases() -> Iterator[Case]:
    """Yield every case, those on a file first."""
    for storage in ("file", "loop"):
        for operation, transport, connections, size in itertools.product(
            ("put", "get"), ("tls", "unix"), (1, 4), SIZES
        ):
            yield Case(operation, size, transport, connections, storage)
        yield Case("zero", 1 * MiB, "tls", 1, storage)
        yield Case("put", 64 * MiB, "tls", 8, storage)
