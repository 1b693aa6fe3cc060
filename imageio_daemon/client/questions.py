# SPDX-License-Identifier: Apache-2.0
"""The commands that only ask about images. Each is a function of this module."""

import argparse
import dataclasses
import json

from ..commands.printable import printable
from . import asking
from .errors import ChecksumMismatch, Usage
from .server.address import is_url
from .server.session import Settings

#: Most ranges that the message names. The output has all of them.
MAX_NAMED = 4


def info(options: argparse.Namespace, settings: Settings) -> None:
    """Print what is known of an image. Raises ClientError, as all functions here do."""
    told = dataclasses.asdict(asking.info(options.image, settings=settings, format=options.format))
    told = {name: value for name, value in told.items() if value not in (None, ())}
    if options.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, tuple) else value}")


def extents(options: argparse.Namespace, settings: Settings) -> None:
    """Print the extents of an image."""
    context = "dirty" if options.dirty else "zero"
    for extent in asking.extents(options.url, settings=settings, context=context):
        kinds = [name for name in ("zero", "hole", "dirty") if getattr(extent, name)]
        if options.json:
            print(json.dumps(extent._asdict()))
        else:
            print(f"{extent.start:>16} {extent.length:>16} {' '.join(kinds) or 'data'}")


def checksum(options: argparse.Namespace, settings: Settings) -> None:
    """Print the checksum of an image."""
    digest = asking.checksum(
        options.image,
        settings=settings,
        format=options.format,
        algorithm=options.algorithm,
        block_size=options.block_size,
        shared=options.shared,
    )
    told = {"algorithm": options.algorithm, "block_size": options.block_size, "checksum": digest}
    print(json.dumps(told) if options.json else digest)


def verify(options: argparse.Namespace, settings: Settings) -> None:
    """Print the ranges in which an image differs from a manifest. Raises ChecksumMismatch if there are any."""
    if is_url(options.manifest):
        raise Usage("the manifest comes first, then the image")
    different = asking.verify(
        options.manifest, options.image, settings=settings, format=options.format, shared=options.shared
    )
    for start, length in different:
        told = json.dumps({"start": start, "length": length}) if options.json else f"{start:>16} {length:>16}"
        print(told, flush=True)  # before the error message
    if different:
        named = ", ".join(f"{start} to {start + length}" for start, length in different[:MAX_NAMED])
        more = f" and {len(different) - MAX_NAMED} more places" if len(different) > MAX_NAMED else ""
        raise ChecksumMismatch(f"{printable(options.manifest)} has other digests for the bytes from {named}{more}")
    if not options.json and not options.quiet:
        print("all blocks are as the manifest has them")
