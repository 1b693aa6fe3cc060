# SPDX-License-Identifier: Apache-2.0
"""The shares of [daemon] buffer_memory, in bytes."""

from ..config.config import Config
from ..units import MiB

#: Eighths that are reserved for data in transports, about 0.5 MiB for each busy connection with TLS. Without the
#: reserve, 64 TLS uploads needed 237 MiB of memory with buffer_memory = 128M.
TRANSPORT_EIGHTHS = 1
#: Eighths for the lanes, which move the bytes of images. The rest is Python's buffers, for checksums.
LANE_EIGHTHS = 5
#: The least memory to share. With less, the share of the lanes would be below their minimum, MIN_LANE_MEMORY.
LEAST = 28 * MiB


def of_lanes(config: Config) -> int:
    """Return the share of the lanes."""
    return _whole(config) // 8 * LANE_EIGHTHS


def of_buffers(config: Config) -> int:
    """Return the share of Python's buffers."""
    whole = _whole(config)
    return whole - whole // 8 * (TRANSPORT_EIGHTHS + LANE_EIGHTHS)


def is_raised(config: Config) -> bool:
    """Return whether buffer_memory is too small, so that LEAST counts."""
    return config.daemon.buffer_memory < LEAST


def _whole(config: Config) -> int:
    return max(config.daemon.buffer_memory, LEAST)
