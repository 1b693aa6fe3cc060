# SPDX-License-Identifier: Apache-2.0
"""The option --dry-run of the command, which prints what a transfer would do, and changes nothing."""

import argparse
import json
import os
from typing import BinaryIO

from ..commands.amounts import human
from ..commands.printable import printable
from .errors import ClientError
from .previews import preview_download, preview_upload
from .server.session import Settings
from .transfer.preview import Preview


def upload(
    options: argparse.Namespace,
    settings: Settings,
    source: str | os.PathLike[str] | BinaryIO,
    url: str,
    member: str | None,
) -> None:
    """Print what the upload of one image would do. Raises ClientError, also if the upload would be refused."""
    told = preview_upload(
        source,
        url,
        settings=settings,
        format=options.format,
        decompress=options.decompress,
        member=member,
        size=options.size,
        restart=options.restart,
        state=not options.no_state if options.state_dir is None else options.state_dir,
        room_check=not options.no_room_check,
        shared=options.shared,
    )
    _end(options, told)


def download(options: argparse.Namespace, settings: Settings, target: str | BinaryIO) -> None:
    """Print what a download would do. Raises as upload()."""
    told = preview_download(
        options.url,
        target,
        settings=settings,
        format=options.format,
        compress=options.compress,
        dirty=options.dirty,
        shared=options.shared,
    )
    _end(options, told)


def _end(options: argparse.Namespace, told: Preview) -> None:
    shown = {name: printable(value) if isinstance(value, str) else value for name, value in vars(told).items()}
    values = {name: value for name, value in shown.items() if name != "refused"}
    if options.json:
        print(json.dumps({"event": "preview", **values, "refused": [str(error) for error in told.refused]}), flush=True)
    else:
        for name, value in values.items():
            if value is not None:
                print(f"{name.replace('_', ' ')}: {_text(value)}")
        for error in told.refused[1:]:
            print(f"refused, too: {error}")
    _raise_first(told.refused)


def _raise_first(refused: tuple[ClientError, ...]) -> None:
    for error in refused:
        raise error


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value} ({human(value)})" if isinstance(value, int) and value >= 1024 else str(value)
