# SPDX-License-Identifier: Apache-2.0
"""The parameters of checksums in requests."""

from ....errors import InvalidRequest
from ....image.blockhash import BLOCK_ALIGNMENT, MAX_BLOCK, MIN_BLOCK, algorithms

#: Most characters of an unknown algorithm's name that the refusal repeats.
MAX_SHOWN = 40

#: The names of the algorithms that this daemon has.
ALGORITHMS = tuple(algorithms())


def require_algorithm(name: str) -> None:
    """Raise InvalidRequest, which names the known algorithms, if this one is unknown."""
    if name not in ALGORITHMS:
        raise InvalidRequest(f"Unknown algorithm {name[:MAX_SHOWN]!r}, known: {', '.join(ALGORITHMS)}")


def require_block_size(size: int, name: str = "block_size") -> None:
    """Raise InvalidRequest, which names the parameter, unless a checksum may have blocks of `size` bytes."""
    if not MIN_BLOCK <= size <= MAX_BLOCK or size % BLOCK_ALIGNMENT:
        raise InvalidRequest(f"Invalid {name}: a multiple of {BLOCK_ALIGNMENT}, from {MIN_BLOCK} to {MAX_BLOCK}")
