# SPDX-License-Identifier: Apache-2.0
"""The client library: transfers of disk images to and from a server of the images API.

    from imageio_daemon.client import Settings, upload

    upload("disk.qcow2", "https://host:54322/images/TICKET", settings=Settings(cafile="ca.pem"))

Functions are synchronous; from a coroutine, call them with asyncio.to_thread(). Offsets and sizes are in bytes. Errors
are raised as ClientError, whose text is one line for the user.
"""

from .api import Info, checksum, disks, download, extents, info, upload
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
)
from .server.session import Settings
from .transfer.download import Downloaded
from .transfer.progress import Progress
from .transfer.upload import Uploaded

__all__ = [
    "ChecksumMismatch",
    "ClientError",
    "Downloaded",
    "FlushFailed",
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
    "checksum",
    "disks",
    "download",
    "extents",
    "info",
    "upload",
]
