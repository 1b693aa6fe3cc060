# SPDX-License-Identifier: Apache-2.0
"""The shares of [daemon] buffer_memory, in bytes."""

from .config.config import Config
from .lanes.shared import MIN_LANE_MEMORY

#: Eighths that are reserved for data held by transports: with TLS about 0.5 MiB for each busy connection. Without the
#: reserve, 64 TLS uploads reached 237 MiB RSS with buffer_memory = 128M.
TRANSPORT_EIGHTHS = 1
#: Eighths for the lanes, if there are any: they move nearly all data. The rest is Python's buffers.
LANE_EIGHTHS = 5


def of_lanes(config: Config) -> int:
    """Return the share of the lanes; 0: no service has lanes, or buffer_memory is too small for them."""
    share = config.daemon.buffer_memory // 8 * LANE_EIGHTHS
    used = config.remote.c_lane or config.nbd.enable
    return share if used and share >= MIN_LANE_MEMORY else 0


def of_buffers(config: Config) -> int:
    """Return the share of Python's buffers."""
    whole = config.daemon.buffer_memory
    return whole - whole // 8 * TRANSPORT_EIGHTHS - of_lanes(config)
