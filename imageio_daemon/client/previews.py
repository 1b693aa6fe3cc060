# SPDX-License-Identifier: Apache-2.0
"""The library's functions that tell what a transfer would do."""

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import BinaryIO

from .errors import Usage
from .local.choosing import Making, choose_target
from .local.formats import named
from .local.in_use import locked
from .local.opening import How, open_source, reading, require_content
from .server.address import is_url
from .server.session import DEFAULTS, ClientSession, Settings, securing
from .server.web import fetched
from .transfer import preview, workers
from .transfer.preview import Preview
from .transfer.record import state_directory
from .transfer.transfer_options import Options


def preview_upload(
    source: str | os.PathLike[str] | BinaryIO,
    url: str,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002 - as in upload()
    decompress: str | None = None,
    member: str | None = None,
    size: int | None = None,
    restart: bool = False,
    state: bool | str | os.PathLike[str] = True,
    room_check: bool = True,
    shared: bool = False,
) -> Preview:
    """Tell what upload() with these arguments would do. Changes nothing on the server, and keeps nothing here.

    Reads a compressed file once if its header has no size, and the first bytes of a stream. Raises ClientError where
    upload() would fail before it knows image and ticket. Later failures are in Preview.refused.
    """
    if isinstance(source, str) and is_url(source) and not is_url(url):
        raise Usage("the image comes first, then the URL")
    how = How(format, decompress, member, size, shared, securing(settings))
    options = Options(restart=restart, state=state_directory(state), room_check=room_check)
    with (
        locked(source, writes=False, shared=shared),
        ClientSession(url, settings) as session,
        fetched(source, settings) as given,
        contextlib.closing(open_source(given, how)) as opened,
    ):
        session.stop.call(opened.stop)
        require_content(opened, source, member)
        names = {"name": _name(source, "standard input"), "format_name": reading(source, how)}
        (told,) = workers.run([partial(preview.preview_upload, opened, session, options, **names)], session.stop)
        return told


def preview_download(
    url: str,
    target: str | os.PathLike[str] | BinaryIO,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    compress: bool = False,
    dirty: bool = False,
    shared: bool = False,
) -> Preview:
    """Tell what download() with these arguments would do. Makes no file, and writes to no image.

    Raises ClientError as preview_upload().
    """
    if isinstance(target, str | os.PathLike) and is_url(os.fspath(target)):
        raise Usage("the URL comes first, then the image")
    chosen = choose_target(target, Making(format, compress, dirty, secure=securing(settings)))
    says = named(chosen.path.name) if chosen.path is not None and format is None else None
    format_name = format or (says and ", ".join(filter(None, (says.format or "raw", says.compression)))) or "raw"
    with locked(target, writes=True, shared=shared), ClientSession(url, settings) as session:
        names = {"name": _name(target, "standard output"), "format_name": format_name}
        (told,) = workers.run([partial(preview.preview_download, session, chosen, dirty=dirty, **names)], session.stop)
        return told


def _name(image: str | os.PathLike[str] | BinaryIO, otherwise: str) -> str:
    return str(Path(image)) if isinstance(image, os.PathLike) else image if isinstance(image, str) else otherwise
