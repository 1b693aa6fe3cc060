# SPDX-License-Identifier: Apache-2.0
"""What a transfer would do, and why it would be refused. Nothing is changed on either side."""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...commands.amounts import human
from ...image.extents import Extent
from ..errors import ClientError, LocalError, Refused
from ..local.choosing import Chosen
from ..local.source import Source
from ..server.session import ClientSession
from .download import extents_of, refusals
from .transfer_options import DownloadOptions, SendOptions
from .upload import Upload


@dataclass(frozen=True)
class Preview:
    """What a transfer would do. Sizes are in bytes, and None if they are unknown or have no meaning.

    `source` and `target` are as the user named them, a server by its address. `format` is the local image's. `size` is
    that of the source, with `data` and `zero` bytes. `rights` are those of the ticket. `target_size` is the size that
    the target has or may get, and `room` the bytes of data for which its storage has room. `from_before` are bytes that
    an earlier upload has left, which are compared and not sent. `replaces` tells whether the local file exists.
    `refused` has the errors with which the transfer would fail, the first one first.
    """

    source: str
    target: str
    format: str
    size: int
    data: int | None
    zero: int | None
    rights: tuple[str, ...]
    connections: int
    target_size: int | None = None
    room: int | None = None
    from_before: int | None = None
    replaces: bool | None = None
    refused: tuple[ClientError, ...] = ()


def preview_upload(
    source: Source, session: ClientSession, options: SendOptions, *, name: str, format_name: str
) -> Preview:
    """Return what the upload of an open source would do. Raises ClientError if that cannot be found out."""
    upload = Upload(source, session, options)
    image = session.open()
    refused = [*upload.refusals(image)]
    abilities = session.abilities
    limit = image.size() if abilities.max_size is None else abilities.max_size
    if upload.writes_end and source.size > limit:
        sizes = f"{source.size} bytes, and the target may have {limit}"
        refused.append(Refused(f"the image has {sizes}: make the target larger", 416))
    data, zero = (None, None) if source.is_stream else _amounts(source.extents())
    return Preview(
        source=name,
        target=session.peer,
        format=format_name,
        size=source.size,
        data=data,
        zero=zero,
        rights=_rights(session),
        connections=upload.connections(),
        target_size=limit,
        room=abilities.available,
        from_before=upload.from_before(),
        refused=tuple(refused),
    )


def preview_download(session: ClientSession, chosen: Chosen, options: DownloadOptions, *, name: str) -> Preview:
    """Return what a download would do. Opens an existing target, without writing. Raises as preview_upload()."""
    image = session.open()
    refused = [*refusals(session, options)]
    extents = extents_of(image, session, options)
    size = sum(extent.length for extent in extents)
    data, zero = _amounts(extent for extent in extents if extent.dirty or not options.dirty)
    file = chosen.path if chosen.path is not None and not chosen.in_place else None
    room = None if file is None else _free(Path(os.path.realpath(file)).parent)
    if chosen.in_place:
        refused += _does_not_fit(chosen, size)
    if file is not None and file.exists():
        refused += _is_kept(file, dirty=options.dirty)
    if file is not None and room is None:
        refused.append(LocalError(f"{file.parent} is no directory in which this user can make files"))
    elif room is not None and data > room and not chosen.packs:
        refused.append(LocalError(f"the image has {human(data)} of data, and there is room for {human(room)}"))
    return Preview(
        source=session.peer,
        target=name,
        format=chosen.format,
        size=size,
        data=data,
        zero=zero,
        rights=_rights(session),
        connections=session.connections(session.abilities.max_readers),
        room=room,
        replaces=None if file is None else file.exists(),
        refused=tuple(refused),
    )


def _is_kept(file: Path, *, dirty: bool) -> list[ClientError]:
    """Return why an existing file would not be replaced, if it would not."""
    if dirty:
        return [LocalError(f"{file} exists: what has changed goes into a new image")]
    return [] if os.access(file, os.W_OK) else [LocalError(f"can't write {file}: {os.strerror(errno.EACCES)}")]


def _amounts(extents: Iterable[Extent]) -> tuple[int, int]:
    """Return the bytes of data, and the bytes that read as zeros."""
    data = zero = 0
    for extent in extents:
        if extent.zero:
            zero += extent.length
        else:
            data += extent.length
    return data, zero


def _rights(session: ClientSession) -> tuple[str, ...]:
    return ("read", "write") if "zero" in session.abilities.features else ("read",)


def _does_not_fit(chosen: Chosen, size: int) -> list[ClientError]:
    try:
        if chosen.check is not None:
            chosen.check(size)
            return []
        target = chosen.make()
        try:
            target.start(size)
        finally:
            target.abandon()
    except LocalError as e:
        return [e]
    return []


def _free(directory: Path) -> int | None:
    """Return the free bytes of a directory, or None if this user can make no file there."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize if os.access(directory, os.W_OK | os.X_OK) else None
