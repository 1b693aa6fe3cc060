# SPDX-License-Identifier: Apache-2.0
"""The client: move disk images to and from a server that speaks the images API.

    from imageio_daemon.client import Settings, upload

    upload("disk.qcow2", "https://host:54322/images/TICKET", settings=Settings(cafile="ca.pem"))

Calls are synchronous; inside, a coroutine watches threads that transfer. From a coroutine of yours, call them with
asyncio.to_thread(). Offsets and sizes are bytes. What goes wrong is a ClientError whose text is one line for the user.
"""

from .api import Info, checksum, download, extents, info, upload
from .download import Downloaded
from .errors import (
    ChecksumMismatch,
    ClientError,
    FlushFailed,
    LocalError,
    Refused,
    ServerFailed,
    StateMismatch,
    Temporary,
    Usage,
)
from .progress import Progress
from .session import Settings
from .upload import Uploaded

__all__ = [
    "ChecksumMismatch",
    "ClientError",
    "Downloaded",
    "FlushFailed",
    "Info",
    "LocalError",
    "Progress",
    "Refused",
    "ServerFailed",
    "Settings",
    "StateMismatch",
    "Temporary",
    "Uploaded",
    "Usage",
    "checksum",
    "download",
    "extents",
    "info",
    "upload",
]
