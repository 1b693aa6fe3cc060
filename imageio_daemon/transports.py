# SPDX-License-Identifier: Apache-2.0
"""What every connection needs of its transport."""

import asyncio


def pause_when_anything_waits(transport: asyncio.WriteTransport) -> None:
    """Let the transport pause writing as soon as it holds a byte, and resume when it holds none.

    A plain transport pauses above `high`, one of TLS at `high`, where 0 would never resume (uvloop 0.23, asyncio).
    """
    tls = transport.get_extra_info("sslcontext") is not None
    transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
