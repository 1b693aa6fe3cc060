# SPDX-License-Identifier: Apache-2.0
"""The library's functions that tell what a transfer would do."""

import os

from .described import Downloading, Local, Uploading
from .local.choosing import Making
from .local.opening import How
from .server.session import DEFAULTS, Settings
from .transfer.preview import Preview
from .transfer.record import state_directory
from .transfer.transfer_options import DownloadOptions, UploadOptions


def preview_upload(
    source: Local,
    url: str,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002 - as in upload()
    decompress: str | None = None,
    member: str | None = None,
    size: int | None = None,
    update: bool = False,
    restart: bool = False,
    state: bool | str | os.PathLike[str] = True,
    room_check: bool = True,
    shared: bool = False,
) -> Preview:
    """Tell what upload() with these arguments would do. Changes nothing on the server, and keeps nothing here.

    Reads a compressed file once if its header has no size, and the first bytes of a stream. Raises ClientError where
    upload() would fail before it knows image and ticket. Later failures are in Preview.refused.
    """
    how = How(format=format, decompress=decompress, member=member, size=size, shared=shared)
    options = UploadOptions(update=update, restart=restart, state=state_directory(state), room_check=room_check)
    return Uploading(source, url, settings, how, options).preview()


def preview_download(
    url: str,
    target: Local,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    compress: bool = False,
    dirty: bool = False,
    update: bool = False,
    shared: bool = False,
) -> Preview:
    """Tell what download() with these arguments would do. Makes no file, and writes to no image.

    Raises ClientError as preview_upload().
    """
    making = Making(format=format, compress=compress, shared=shared)
    return Downloading(url, target, settings, making, DownloadOptions(dirty=dirty, update=update)).preview()
