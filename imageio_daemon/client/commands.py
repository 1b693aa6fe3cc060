# SPDX-License-Identifier: Apache-2.0
"""The commands that transfer images. Each is a function of the options and of the Transfer to show."""

import argparse
import contextlib
import dataclasses
from typing import BinaryIO, TypeVar

from ..commands.amounts import human
from ..commands.printable import printable
from ..commands.standard_streams import STDIN, STDOUT, Streams
from . import asking
from .described import Copying, Downloading, Local, Uploading
from .display import Display, display
from .errors import ChecksumMismatch, ClientError, LocalError, OtherFinalized, StateMismatch, Usage
from .local.image_output import ImageOutput
from .server.address import is_url
from .server.session import Settings
from .transfer.progress import Progress
from .transfer.transfer_options import DownloadOptions, SendOptions, UploadOptions

_T = TypeVar("_T", Settings, UploadOptions, DownloadOptions, SendOptions)


class ShownTransfer:
    """The display of a transfer, and the message about what a failed transfer leaves."""

    def __init__(self, options: argparse.Namespace, streams: Streams) -> None:
        self._streams = streams
        self.display: Display = display(options.command, as_json=options.json, quiet=options.quiet)
        self.incomplete: str | None = None  # what is left incomplete if the transfer fails after its first bytes
        self.updates = getattr(options, "update", False)
        self.new: str | None = None  # the file that only a complete transfer creates
        self._progress = Progress()
        self._shown = False

    def report(self, progress: Progress) -> None:
        """Show the progress."""
        self._shown = True
        self._progress = progress
        self.display.update(progress)

    def finish(self, verb: str, progress: Progress, **details: object) -> None:
        """Show the result."""
        self._shown = False
        self._progress = Progress()  # for the next disk
        self._streams.wait(waits=True)
        self.display.finish(verb, progress, **details)
        self._streams.wait(waits=False)

    def remains(self, error: ClientError | None = None) -> str:
        """Return the part of an error message that says what is incomplete, or ""."""
        self._streams.wait(waits=True)
        if self._shown:
            self.display.abandon()
        if isinstance(error, OtherFinalized):
            return ""
        if self._progress.complete:  # only what comes after it has failed
            return f"; {self.new or self.incomplete} is complete"
        if self._progress.durable and not isinstance(error, StateMismatch | ChecksumMismatch):
            durable, total = human(self._progress.durable), human(self._progress.total or 0)
            return f"; {durable} of {total} are on stable storage, the same command continues"
        anew = ": the same command continues" if self.updates else ": start anew"
        anew = "" if isinstance(error, LocalError) else anew  # a repetition would fail, too
        if self._progress.done and self.new:
            return f"; {self.new} was not made{anew}"
        if self._progress.done and self.incomplete:
            return f"; {self.incomplete} is incomplete ({human(self._progress.done)} were done){anew}"
        return ""


def given(options: argparse.Namespace, kind: type[_T]) -> _T:
    """Return settings or options of the library: those of the command, which have the same names.

    Raises ClientError if they contradict each other.
    """
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in vars(options).items() if name in names})


def _standard_input() -> BinaryIO:
    """Return standard input unbuffered, so that it can be polled and Ctrl-C ends the wait. Raises LocalError."""
    try:
        return open(STDIN, "rb", buffering=0, closefd=False)
    except OSError as e:
        raise LocalError(f"can't read standard input: {e.strerror}") from e


def upload(options: argparse.Namespace, transfer: ShownTransfer) -> None:
    """Upload an image, or several from an archive. Raises ClientError, as all functions here do."""
    if options.source_cafile is not None and not is_url(options.image):
        raise Usage("--source-cafile is for an image on a web server")
    if options.all:
        names = asking.disks(options.image, decompress=options.decompress, progress=transfer.report)
        if len(names) != len(options.url):
            raise Usage(f"there are {len(options.url)} URLs for the {len(names)} disks {', '.join(names)}")
        for name, url in zip(names, options.url, strict=True):
            _upload_one(options, transfer, url, name)
    elif len(options.url) > 1:
        raise Usage("an image has one URL; --all uploads the disks of an archive to several")
    else:
        _upload_one(options, transfer, options.url[0], options.member)


def _upload_one(options: argparse.Namespace, transfer: ShownTransfer, url: str, member: str | None) -> None:
    source: Local = _standard_input() if options.image == "-" else options.image
    sent = dataclasses.replace(given(options, UploadOptions), member=member)
    described = Uploading(source, url, given(options, Settings), sent)
    if options.dry_run:
        _preview(options, described)
        return
    transfer.incomplete = "the target"
    done = described.run(transfer.report)
    disk = printable(member) if options.all and member else None
    transfer.finish("uploaded", done.progress, checksum=done.checksum, verified=done.verified, disk=disk)


def download(options: argparse.Namespace, transfer: ShownTransfer) -> None:
    """Download an image."""
    to_stdout = options.image == "-"
    if to_stdout and options.json:
        raise Usage("standard output can't take the image and JSON")
    with contextlib.ExitStack() as stack:
        _download_to(stack.enter_context(ImageOutput(STDOUT)) if to_stdout else options.image, options, transfer)


def _download_to(target: Local, options: argparse.Namespace, transfer: ShownTransfer) -> None:
    described = Downloading(options.url, target, given(options, Settings), given(options, DownloadOptions))
    if options.dry_run:
        _preview(options, described)
        return
    if options.image == "-":
        transfer.incomplete = "the output"
    elif described.chosen.in_place:
        transfer.incomplete = options.image
    else:
        transfer.new = options.image
    done = described.run(transfer.report)
    transfer.finish("downloaded", done.progress, checksum=done.checksum)


def copy(options: argparse.Namespace, transfer: ShownTransfer) -> None:
    """Copy an image from one server to another."""
    source, target = options.url
    settings = given(options, Settings)
    transfer.incomplete = "the target"
    done = Copying(source, target, settings, settings, given(options, SendOptions)).run(transfer.report)
    transfer.finish("copied", done.progress, checksum=done.checksum, verified=done.verified)


def _preview(options: argparse.Namespace, described: Uploading | Downloading) -> None:
    from . import dry_run  # noqa: PLC0415 - other transfers start 1 ms earlier without it

    dry_run.show(described.preview(), as_json=options.json)
