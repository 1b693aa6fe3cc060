# SPDX-License-Identifier: Apache-2.0
"""What a server tells about an image and itself: the answer to OPTIONS (docs/images-api.md)."""

from dataclasses import dataclass
from typing import Any, Self

from ...units import MAX_OFFSET
from .local_socket import LocalSocket

#: Largest max_readers and max_writers that are accepted from a server.
MAX_CONNECTIONS = 10**6


@dataclass(frozen=True)
class Abilities:
    """The answer to OPTIONS.

    `local` is the server's unix socket, if the answer has a proof for it. `reads_zero` tells that the whole image reads
    as zeros. `encodings` are the codings of bodies that the server takes. `instance` names the server's process.
    `max_size` is the most bytes that the image may have, and `available` the bytes that its storage has free for it,
    if they are known.
    """

    features: frozenset[str]
    max_readers: int = 1
    max_writers: int = 1
    local: LocalSocket | None = None
    reads_zero: bool = False
    instance: str | None = None
    encodings: frozenset[str] = frozenset()
    max_size: int | None = None
    available: int | None = None

    @classmethod
    def from_json(cls, answer: Any) -> Self:
        """Return the abilities. Raises KeyError or TypeError for a malformed answer."""
        if not isinstance(answer, dict) or not isinstance(answer["features"], list):
            raise TypeError("no object")
        return cls(
            frozenset(map(str, answer["features"])),
            _connections(answer.get("max_readers", 1)),
            _connections(answer.get("max_writers", 1)),
            _local(answer.get("unix_socket"), answer.get("unix_socket_proof")),
            answer.get("zero_state") == "zero",
            instance if isinstance(instance := answer.get("instance"), str) else None,
            _encodings(answer.get("encodings", [])),
            _bytes(answer.get("max_size")),
            _bytes(answer.get("available")),
        )


def _connections(told: object) -> int:
    if type(told) is not int or told > MAX_CONNECTIONS:
        raise TypeError("no number of connections")
    return max(1, told)


def _local(address: object, proof: object) -> LocalSocket | None:
    if address is not None and not isinstance(address, str):
        raise TypeError("unix_socket")
    return None if address is None else LocalSocket.told(address, proof)


def _encodings(told: object) -> frozenset[str]:
    return frozenset(map(str, told)) if isinstance(told, list) else frozenset()


def _bytes(told: object) -> int | None:
    if told is not None and (type(told) is not int or not 0 <= told <= MAX_OFFSET):
        raise TypeError("no number of bytes")
    return told
