# SPDX-License-Identifier: Apache-2.0
"""The command imageio-client."""

import argparse
import dataclasses
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from ..amounts import human
from . import api
from .arguments import parser
from .display import CLEAR_LINE, Display, display, draws
from .errors import ChecksumMismatch, ClientError, LocalError, StateMismatch, Usage
from .local.archive import shown
from .local.formats import named, on_ceph
from .local.target import is_existing_device
from .server.session import Settings
from .transfer.progress import Progress

#: Exit status after a signal: this plus its number, as in shells.
SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or that of the error; see docs/client.md."""
    # What was imported stays. Without a look at it, the end of the interpreter takes 7 ms less.
    gc.freeze()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["ticket"]:
        return _refuse_former(given[1:2])
    options = parser().parse_args(given)
    logging.basicConfig(format=f"{CLEAR_LINE if draws(sys.stderr) else ''}imageio-client: %(message)s")
    level = logging.INFO if options.verbose else logging.ERROR if options.quiet else logging.WARNING
    logging.getLogger(__package__).setLevel(level)
    transfer = _Transfer(options)
    received = _signals()
    try:
        _COMMANDS[options.command](options, transfer)
    except ClientError as e:
        return _fail(options, f"{e}{transfer.remains(e)}", e.status, e.code)
    except KeyboardInterrupt:
        return _fail(options, f"interrupted{transfer.remains()}", SIGNALLED + (received or [signal.SIGINT])[0])
    except BrokenPipeError:
        # The reader of standard output has closed it. A flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _refuse_former(action: Sequence[str]) -> int:
    """Name the program that has the commands `ticket ACTION` of earlier versions, and return the exit status."""
    present = ["remove" if word == "cancel" else word for word in action]
    print(f"imageio-client: `{' '.join(['imageioctl', 'ticket', *present])}` does this now", file=sys.stderr)
    return Usage.status


def _signals() -> list[int]:
    """Let SIGTERM and SIGHUP end the command as SIGINT does; return a list to which received ones are appended."""
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)  # that of workers.run() while threads work
        # Shells start background jobs with SIGINT ignored.
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) ignores SIGHUP
            signal.signal(number, end)
    return received


class _Transfer:
    """The display of a transfer, and the message about what a failed one leaves behind."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.display: Display = display(as_json=options.json, quiet=options.quiet)
        self.incomplete: str | None = None  # what a failed transfer leaves incomplete, if it has transferred bytes
        self.new: str | None = None  # what only a complete transfer creates
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
        self.display.finish(verb, progress, **details)

    def remains(self, error: ClientError | None = None) -> str:
        """Return the part of an error message that says what is incomplete; "" if nothing is."""
        if self._shown:
            self.display.abandon()
        if self._progress.durable and not isinstance(error, StateMismatch | ChecksumMismatch):
            durable, total = human(self._progress.durable), human(self._progress.total or 0)
            return f"; {durable} of {total} are on stable storage, the same command continues"
        if self._progress.done and self.new:
            return f"; {self.new} was not made: start anew"
        if self._progress.done and self.incomplete:
            return f"; {self.incomplete} is incomplete ({human(self._progress.done)} were done): start anew"
        return ""


def _fail(options: argparse.Namespace, message: str, status: int, code: str | None = None) -> int:
    if options.json:
        told = {"event": "error", "message": message, "status": status}
        print(json.dumps(told | ({"code": code} if code else {})), flush=True)
    print(f"imageio-client: {message}", file=sys.stderr)
    return status


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        cafile=options.cafile,
        pins=options.pin,
        insecure=options.insecure,
        unix_socket=options.unix_socket,
        local=not options.no_local,
        connections=getattr(options, "connections", None),
        retry_for=options.retry_for,
    )


def _standard_input() -> BinaryIO:
    """Return standard input unbuffered, so that it can be polled and Ctrl-C ends the wait. Raises LocalError."""
    try:
        return open(0, "rb", buffering=0, closefd=False)
    except OSError as e:
        raise LocalError(f"can't read standard input: {e.strerror}") from e


def _upload(options: argparse.Namespace, transfer: _Transfer) -> None:
    if options.all:
        names = api.disks(options.image, decompress=options.decompress)
        if len(names) != len(options.url):
            raise Usage(f"there are {len(options.url)} URLs for the {len(names)} disks {', '.join(map(shown, names))}")
        for name, url in zip(names, options.url, strict=True):
            _upload_one(options, transfer, url, name)
    elif len(options.url) > 1:
        raise Usage("an image has one URL; --all uploads the disks of an archive to several")
    else:
        _upload_one(options, transfer, options.url[0], options.member)


def _upload_one(options: argparse.Namespace, transfer: _Transfer, url: str, member: str | None) -> None:
    source: str | BinaryIO = _standard_input() if options.image == "-" else options.image
    transfer.incomplete = "the target"
    done = api.upload(
        source,
        url,
        settings=_settings(options),
        format=options.format,
        decompress=options.decompress,
        member=member,
        size=options.size,
        restart=options.restart,
        compare_all=options.compare_all,
        state=not options.no_state if options.state_dir is None else options.state_dir,
        verify=options.verify,
        room_check=not options.no_room_check,
        wire_compression=options.wire_compression,
        shared=options.shared,
        progress=transfer.report,
    )
    disk = shown(member) if options.all and member else None
    transfer.finish("uploaded", done.progress, checksum=done.checksum, verified=done.verified, disk=disk)


def _download(options: argparse.Namespace, transfer: _Transfer) -> None:
    to_stdout = options.image == "-"
    if to_stdout and options.json:
        raise Usage("standard output can't take the image and JSON")
    target: str | BinaryIO = sys.stdout.buffer if to_stdout else options.image
    is_raw = (options.format or named(options.image).format or "raw") == "raw"
    if to_stdout:
        transfer.incomplete = "the output"
    elif on_ceph(options.image) or (options.dirty and is_raw) or is_existing_device(Path(options.image)):
        transfer.incomplete = options.image
    else:
        transfer.new = options.image
    done = api.download(
        options.url,
        target,
        settings=_settings(options),
        format=options.format,
        compress=options.compress,
        dirty=options.dirty,
        verify=options.verify,
        shared=options.shared,
        progress=transfer.report,
    )
    transfer.finish("downloaded", done.progress, checksum=done.checksum)


def _info(options: argparse.Namespace, _: _Transfer) -> None:
    told = dataclasses.asdict(api.info(options.image, settings=_settings(options), format=options.format))
    told = {name: value for name, value in told.items() if value not in (None, ())}
    if options.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, tuple) else value}")


def _extents(options: argparse.Namespace, _: _Transfer) -> None:
    context = "dirty" if options.dirty else "zero"
    for extent in api.extents(options.url, settings=_settings(options), context=context):
        kinds = [name for name in ("zero", "hole", "dirty") if getattr(extent, name)]
        if options.json:
            print(json.dumps(extent._asdict()))
        else:
            print(f"{extent.start:>16} {extent.length:>16} {' '.join(kinds) or 'data'}")


def _checksum(options: argparse.Namespace, _: _Transfer) -> None:
    digest = api.checksum(
        options.image,
        settings=_settings(options),
        format=options.format,
        algorithm=options.algorithm,
        block_size=options.block_size,
        shared=options.shared,
    )
    told = {"algorithm": options.algorithm, "block_size": options.block_size, "checksum": digest}
    print(json.dumps(told) if options.json else digest)


_COMMANDS: dict[str, Callable[[argparse.Namespace, _Transfer], None]] = {
    "upload": _upload,
    "download": _download,
    "info": _info,
    "extents": _extents,
    "checksum": _checksum,
}

if __name__ == "__main__":
    sys.exit(main())
