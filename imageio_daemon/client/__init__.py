# SPDX-License-Identifier: Apache-2.0
"""The client library: transfers of disk images to and from a server of the images API, and open images.

    from imageio_daemon.client import Settings, upload

    upload("disk.qcow2", "https://host:54322/images/TICKET", settings=Settings(cafile="ca.pem"))

Functions are synchronous; a coroutine calls them with asyncio.to_thread(), and opens images with open_async(). Offsets
and sizes are in bytes. Errors are raised as ClientError, whose text is one line for the user.
"""

from typing import TYPE_CHECKING

from ..image.extents import Extent
from .api import (
    Info,
    checksum,
    disks,
    download,
    extents,
    info,
    open,  # noqa: A004 - as that of files
    upload,
)
from .errors import (
    ChecksumMismatch,
    ClientError,
    FlushFailed,
    LocalError,
    NoRoom,
    Refused,
    ServerFailed,
    StateMismatch,
    StorageFailed,
    Temporary,
    Usage,
    WritesLost,
)
from .handle.image import Image
from .lazily import imported_at_use
from .server.session import Settings
from .transfer.download import Downloaded
from .transfer.options import Uploaded
from .transfer.progress import Progress

if TYPE_CHECKING:
    from .handle.asynchronous import AsyncImage, open_async
else:
    __getattr__ = imported_at_use(
        __name__, {"AsyncImage": ".handle.asynchronous", "open_async": ".handle.asynchronous"}
    )

__all__ = [
    "AsyncImage",
    "ChecksumMismatch",
    "ClientError",
    "Downloaded",
    "Extent",
    "FlushFailed",
    "Image",
    "Info",
    "LocalError",
    "NoRoom",
    "Progress",
    "Refused",
    "ServerFailed",
    "Settings",
    "StateMismatch",
    "StorageFailed",
    "Temporary",
    "Uploaded",
    "Usage",
    "WritesLost",
    "checksum",
    "disks",
    "download",
    "extents",
    "info",
    "open",
    "open_async",
    "upload",
]
