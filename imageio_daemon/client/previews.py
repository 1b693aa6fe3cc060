# SPDX-License-Identifier: Apache-2.0
"""The functions of the library that tell what a transfer would do."""

import os

from .described import Downloading, Local, Uploading
from .local.choosing import Making
from .local.opening import How
from .server.session import DEFAULTS, Settings
from .transfer.options import DownloadOptions, UploadOptions
from .transfer.preview import Preview
from .transfer.record import state_directory


def preview_upload(
    source: Local,
    url: str,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002 - as of upload()
    decompress: str | None = None,
    member: str | None = None,
    size: int | None = None,
    restart: bool = False,
    state: bool | str | os.PathLike[str] = True,
    room_check: bool = True,
    shared: bool = False,
) -> Preview:
    """Tell what upload() with these arguments would do. Nothing is changed on the server or kept here.

    A compressed file that does not tell its size is read once; of a stream the first bytes are. Raises ClientError for
    what upload() would fail with before it knows image and ticket; later failures are in Preview.refused.
    """
    how = How(format=format, decompress=decompress, member=member, size=size, shared=shared)
    options = UploadOptions(restart=restart, state=state_directory(state), room_check=room_check)
    return Uploading(source, url, settings, how, options).preview()


def preview_download(
    url: str,
    target: Local,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    compress: bool = False,
    dirty: bool = False,
    shared: bool = False,
) -> Preview:
    """Tell what download() with these arguments would do. No file is made, and no image is written to.

    Raises ClientError as preview_upload().
    """
    making = Making(format=format, compress=compress, shared=shared)
    return Downloading(url, target, settings, making, DownloadOptions(dirty=dirty)).preview()
