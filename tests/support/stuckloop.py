# SPDX-License-Identifier: Apache-2.0
"""The daemon, of which a loop does not answer at the end, and which checks tickets at the end only."""

import asyncio
import sys

from imageio_daemon import cli, daemon, watching
from imageio_daemon.net.loops import ServingLoop


async def finish(self: ServingLoop, timeout: float) -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    daemon.ENDING_TIMEOUT = 0.2
    watching.EXPIRY_INTERVAL = 1000.0
    ServingLoop.finish = finish  # type: ignore[method-assign]
    sys.exit(cli.main())
