# SPDX-License-Identifier: Apache-2.0
"""The command imageio-client."""

import argparse
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from ..commands import standard_streams
from ..commands.printable import printable
from ..commands.standard_streams import Streams
from .arguments import parser
from .commands import ShownTransfer, copy, download, given, upload
from .display import CLEAR_LINE, draws
from .errors import ClientError, LocalError, Usage
from .server.address import is_url
from .server.session import Settings
from .ticket_ids import STANDARD_INPUT, complete, without_tickets

#: Exit status after a signal: this plus its number, as in shells.
SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or that of the error; see docs/client.md."""
    # Imported objects stay to the end. If the garbage collector ignores them, the interpreter ends 7 ms earlier.
    gc.freeze()
    given = list(sys.argv[1:] if arguments is None else arguments)
    return standard_streams.run("imageio-client", partial(_run, given), lost=LocalError.status)


def _run(given: Sequence[str], streams: Streams) -> int:
    if given[:1] == ["ticket"]:
        return _refuse_former(given[1:2])
    options = parser().parse_args(given)
    is_transfer = options.command in ("upload", "download", "copy") and not getattr(options, "dry_run", False)
    # The status of a transfer is about the transfer, even if its output cannot be written. It does not wait for
    # readers.
    streams.output.is_result = not is_transfer
    streams.wait(waits=not is_transfer)
    handler = logging.StreamHandler()
    handler.setFormatter(_Line(f"{CLEAR_LINE if draws(sys.stderr) else ''}imageio-client: %(message)s"))
    logging.basicConfig(handlers=[handler])
    level = logging.INFO if options.verbose else logging.ERROR if options.quiet else logging.WARNING
    logging.getLogger(__package__).setLevel(level)
    transfer = ShownTransfer(options, streams)
    received = _signals()
    try:
        _add_tickets(options)
        _COMMANDS[options.command](options, transfer)
    except ClientError as e:
        return _fail(options, f"{e}{transfer.remains(e)}", e.status, e.code)
    except KeyboardInterrupt:
        return _fail(options, f"interrupted{transfer.remains()}", SIGNALLED + (received or [signal.SIGINT])[0])
    return 0


def _add_tickets(options: argparse.Namespace) -> None:
    """Complete the URLs of the command with their tickets. Raises Usage, LocalError."""
    file, name = options.ticket_file, "url" if hasattr(options, "url") else "image"
    if file == STANDARD_INPUT and options.command == "upload" and options.image == STANDARD_INPUT:
        raise Usage("standard input can't have the ticket and the image")
    given = getattr(options, name)
    if isinstance(given, list):
        options.url = complete(given, file, os.environ)
    elif is_url(given):
        setattr(options, name, complete([given], file, os.environ)[0])
    elif file is not None:
        raise Usage("a ticket is for a URL")


def _refuse_former(action: Sequence[str]) -> int:
    """Name the program that has the commands `ticket ACTION` of earlier versions, and return the exit status."""
    present = ["remove" if word == "cancel" else word for word in action]
    print(f"imageio-client: `{' '.join(['imageioctl', 'ticket', *present])}` does this now", file=sys.stderr)
    return Usage.status


def _signals() -> list[int]:
    """Let SIGTERM and SIGHUP end the command as SIGINT does. Return a list that gets the received signals."""
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)  # while threads work, the handler of workers.run()
        # Shells start background jobs with SIGINT ignored.
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) ignores SIGHUP
            signal.signal(number, end)
    return received


class _Line(logging.Formatter):
    """A formatter that writes a message as one line, whatever the names in it are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        record.message = printable(record.message)
        return super().formatMessage(record)


def _fail(options: argparse.Namespace, message: str, status: int, code: str | None = None) -> int:
    message = printable(without_tickets(message, vars(options).values()))
    if options.json:
        told = {"event": "error", "message": message, "status": status}
        print(json.dumps(told | ({"code": code} if code else {})), flush=True)
    print(f"imageio-client: {message}", file=sys.stderr)
    return status


def _question(name: str) -> Callable[[argparse.Namespace, ShownTransfer], None]:
    def ask(options: argparse.Namespace, _: ShownTransfer) -> None:
        from . import questions  # noqa: PLC0415 - transfers start earlier without it

        getattr(questions, name)(options, given(options, Settings))

    return ask


def _nbd(options: argparse.Namespace, _: ShownTransfer) -> None:
    from . import nbd_socket  # noqa: PLC0415 - as above

    def listening(uri: str, path: str) -> None:
        if options.json:
            print(json.dumps({"event": "listening", "uri": uri, "socket": path}), flush=True)
        elif not options.quiet:
            print(uri, flush=True)

    nbd_socket.serve(options.url, options.socket, given(options, Settings), listening)


_COMMANDS: dict[str, Callable[[argparse.Namespace, ShownTransfer], None]] = {
    "upload": upload,
    "download": download,
    "copy": copy,
    "nbd": _nbd,
    **{name: _question(name) for name in ("info", "extents", "checksum", "verify")},
}

if __name__ == "__main__":
    sys.exit(main())
