# SPDX-License-Identifier: Apache-2.0
"""The library's function copy(), which copies an image from one server to another."""

import contextlib
import os
import re

from .errors import Usage
from .server.address import is_url
from .server.session import DEFAULTS, ClientSession, Settings
from .transfer import workers
from .transfer.checkpoints import CHECKPOINT
from .transfer.progress import Counter, Report
from .transfer.record import state_directory
from .transfer.remote_source import RemoteSource
from .transfer.transfer_options import Options, Uploaded
from .transfer.upload import Upload

#: A checksum of imageio-client, in hexadecimal: BLAKE2b with 32 bytes.
CHECKSUM = "[0-9a-f]{64}"


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
    if not (is_url(source) and is_url(target)):
        raise Usage("a copy is from one server to another: upload takes an image of this host, download makes one")
    if update and restart:
        raise Usage("an update compares all, and sends what differs")
    if base is not None and not (update and re.fullmatch(CHECKSUM, base)):
        raise Usage("base is for an update, the 64 digits of a checksum as copy and checksum tell it")
    with (
        ClientSession(target, settings) as session,
        ClientSession(source, settings if source_settings is None else source_settings) as origin,
    ):
        # In a thread, so that Ctrl-C ends the wait.
        (opened,) = workers.run([lambda: RemoteSource(origin)], origin.stop)
        with contextlib.closing(opened):
            options = Options(
                verify=verify or update,
                restart=restart,
                state=state_directory(state),
                checkpoint=checkpoint,
                room_check=room_check,
                update=update,
                base=base,
            )
            return Upload(opened, session, options, progress, Counter()).run()
