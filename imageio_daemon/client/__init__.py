# SPDX-License-Identifier: Apache-2.0
"""The client library: transfers of disk images to and from a server of the images API, and open images.

    from imageio_daemon.client import Settings, upload

    upload("disk.qcow2", "https://host:54322/images/TICKET", settings=Settings(cafile="ca.pem"))

Functions block; a coroutine calls them with asyncio.to_thread(). Offsets and sizes are in bytes. Functions raise
ClientError, whose text is one line for the user.
"""

from typing import TYPE_CHECKING

from ..image.extents import Extent
from .api import (
    copy,
    download,
    open,  # noqa: A004 - named as that of files
    preview_download,
    preview_upload,
    upload,
)
from .asking import Info, checksum, disks, extents, info, verify
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
from .handle import Image
from .server.session import Settings
from .transfer.download import Downloaded
from .transfer.progress import Progress
from .transfer.transfer_options import Uploaded

if TYPE_CHECKING:
    from .transfer.preview import Preview
else:

    def __getattr__(name: str) -> object:
        """Import the type of what few programs ask for at its first use: all others start earlier."""
        if name != "Preview":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .transfer.preview import Preview  # noqa: PLC0415

        return Preview


__all__ = [
    "ChecksumMismatch",
    "ClientError",
    "Downloaded",
    "Extent",
    "FlushFailed",
    "Image",
    "Info",
    "LocalError",
    "NoRoom",
    "Preview",
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
    "copy",
    "disks",
    "download",
    "extents",
    "info",
    "open",
    "preview_download",
    "preview_upload",
    "upload",
    "verify",
]
