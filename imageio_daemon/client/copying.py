# SPDX-License-Identifier: Apache-2.0
"""The library's function copy(), which copies an image from one server to another."""

import os

from .described import Copying
from .server.session import DEFAULTS, Settings
from .transfer.checkpoints import CHECKPOINT
from .transfer.progress import Report
from .transfer.record import state_directory
from .transfer.transfer_options import Uploaded, UploadOptions


def copy(
    source: str,
    target: str,
    *,
    settings: Settings = DEFAULTS,
    source_settings: Settings | None = None,
    restart: bool = False,
    update: bool = False,
    base: str | None = None,
    state: bool | str | os.PathLike[str] = True,
    checkpoint: float = CHECKPOINT,
    verify: bool = False,
    room_check: bool = True,
    progress: Report | None = None,
) -> Uploaded:
    """Make the image at the URL `target` read as the one at the URL `source`, on stable storage.

    Data goes through this host's memory; zeros are not transferred. This is an upload whose source is an image of a
    server: see upload() for the arguments, and for how it continues. `source_settings` is for the server of the source,
    if it differs from `settings`. `base`, for `update`, is the checksum() that the source had when the bitmap of its
    ticket began. If the target has this checksum, what the bitmap marks is sent, and only a sample of the rest is
    compared. Any other target is compared as a whole. Raises ClientError.
    """
    options = UploadOptions(
        verify=verify,
        restart=restart,
        state=state_directory(state),
        checkpoint=checkpoint,
        update=update,
        base=base,
        room_check=room_check,
    )
    return Copying(source, target, settings, source_settings or settings, options).run(progress)
