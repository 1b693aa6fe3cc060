# SPDX-License-Identifier: Apache-2.0
"""The function of the library that copies an image from one server to another."""

import os

from .described import Copying
from .server.session import DEFAULTS, Settings
from .transfer.checkpoints import CHECKPOINT
from .transfer.options import Uploaded, UploadOptions
from .transfer.progress import Report
from .transfer.record import state_directory


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
    """Make the image at the URL target read as the one at the URL source, on stable storage.

    Data goes through this host's memory, and zeros do not go at all. It is an upload whose source is an image of a
    server: see upload() for the arguments, and for how it goes on. source_settings: for the server of the source; None:
    as settings. base: with update, the checksum() of the source as it was when the bitmap of its ticket began: a target
    that is the same is not compared but for a sample, and what the bitmap marks is sent. Any other target is compared
    as a whole. Raises ClientError.
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
