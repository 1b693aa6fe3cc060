# SPDX-License-Identifier: Apache-2.0
"""A daemon whose services do not finish at the end, and which checks tickets only at the end."""

import asyncio
import sys

from imageio_daemon import cli, daemon
from imageio_daemon.lifecycle import watching
from imageio_daemon.net.serving import Serving


async def finish(self: Serving, timeout: float) -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    daemon.ENDING_TIMEOUT = 0.2
    watching.EXPIRY_INTERVAL = 1000.0
    Serving.finish = finish  # type: ignore[method-assign]
    sys.exit(cli.main())
