# SPDX-License-Identifier: Apache-2.0
"""The daemon, which answers a finalize before its result, and reads no image while there is a file `held` beside it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from imageio_daemon import cli
from imageio_daemon.operations import finalize
from imageio_daemon.operations.checksum import checksum

HELD = Path(sys.argv[sys.argv.index("-c") + 1]) / "held"


async def held(*arguments: Any) -> int:
    while HELD.exists():
        await asyncio.sleep(0.02)
    return await checksum(*arguments)


if __name__ == "__main__":
    finalize.ANSWER_TIMEOUT = 0.1
    vars(finalize)["checksum"] = held
    sys.exit(cli.main())
