# SPDX-License-Identifier: Apache-2.0
"""A daemon that answers a finalize before its result.

While its directory has a file `held`, it reads no image, and while it has `unkept`, it keeps no ticket. While
it has `broken`, reading the image fails. With `late`, no answer has the result.
"""

import asyncio
import errno
import sys
from pathlib import Path
from typing import Any

from imageio_daemon import cli
from imageio_daemon.errors import StorageError
from imageio_daemon.operations import finalize
from imageio_daemon.operations.checksum import checksum
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.transfer import Transfer

DIRECTORY = Path(sys.argv[sys.argv.index("-c") + 1])
keep_at_once = TransferStore.keep


async def until_removed(name: str) -> None:
    while (DIRECTORY / name).exists():
        await asyncio.sleep(0.02)


async def held(*arguments: Any) -> int:
    await until_removed("held")
    if (DIRECTORY / "late").exists():
        await asyncio.sleep(3 * finalize.ANSWER_TIMEOUT)
    if (DIRECTORY / "broken").exists():
        raise StorageError(errno.EIO, "checksum", "pread")
    return await checksum(*arguments)


async def keep(self: TransferStore, transfer: Transfer) -> bool:
    await until_removed("unkept")
    return await keep_at_once(self, transfer)


if __name__ == "__main__":
    finalize.ANSWER_TIMEOUT = 0.1
    vars(finalize)["checksum"] = held
    TransferStore.keep = keep  # type: ignore[method-assign]
    sys.exit(cli.main())
