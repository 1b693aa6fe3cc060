# SPDX-License-Identifier: Apache-2.0
"""Groups of arguments that several commands of imageio-client have.

What the library has, too, is stored by the name that it has there; see given() in commands.py.
"""

import argparse
import re
from typing import NoReturn, TypeAlias

from ..commands.amounts import parse_seconds, parse_size
from .server.pace import LEAST_RATE
from .ticket_ids import VARIABLE

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

MAX_CONNECTIONS = 64

#: A URL in an error of argparse, which quotes arguments that it does not understand.
_URL = re.compile(r"(https?://[^/\s'\"]*)/\S*", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """A parser whose error messages have no ticket ids."""

    def error(self, message: str) -> NoReturn:
        """Print the message, without what follows the host of URLs, and exit."""
        super().error(_URL.sub(r"\1/…", message))


def add_command(commands: Commands, name: str, text: str, examples: str | None = None) -> argparse.ArgumentParser:
    """Add a command with its options for output."""
    command = commands.add_parser(
        name,
        help=text[0].lower() + text[1:-1],
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    output = command.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="write one JSON object per line to standard output")
    amount = output.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    amount.add_argument("-v", "--verbose", action="store_true", help="tell what happens, repeated requests too")
    return command


def add_server(command: argparse.ArgumentParser) -> None:
    """Add the options of the server."""
    server = command.add_argument_group("server")
    server.add_argument("--cafile", metavar="FILE", help="trust the authorities in this file, not those of the system")
    server.add_argument(
        "--pin",
        dest="pins",
        action="append",
        default=[],
        metavar="sha256//BASE64",
        help="trust a server with this public key, as curl's --pinnedpubkey; may be given several times",
    )
    server.add_argument("--cert", metavar="FILE", help="the certificate for a server that wants one of its clients")
    server.add_argument("--key", metavar="FILE", help="the key of the certificate (default: it is in the same file)")
    server.add_argument(
        "--insecure", action="store_true", help="do not verify the server's certificate, and allow http://"
    )
    server.add_argument(
        "--ticket-file",
        metavar="FILE",
        help=f"read the ticket from FILE, - is standard input, for a URL without one; or set {VARIABLE}",
    )
    way = server.add_mutually_exclusive_group()
    way.add_argument(
        "--unix-socket", metavar="PATH", help="connect to the local service of this host; @NAME is an abstract socket"
    )
    way.add_argument(
        "--no-local", dest="local", action="store_false", help="do not look for the local service of this host"
    )
    server.add_argument(
        "--retry-for",
        type=parse_seconds,
        metavar="TIME",
        help="go on for so long while the server or the network is away: 90, 30m, 2h (default: 2m)",
    )


def add_connections(command: argparse.ArgumentParser) -> None:
    """Add the options for connections, and for the end of a transfer."""
    command.add_argument(
        "--connections",
        type=_connections,
        metavar="N",
        help="use up to N connections (default: what seems useful)",
    )
    command.add_argument(
        "--rate",
        type=_rate,
        metavar="BYTES",
        help="move at most so much per second, all connections together; K, M, G may follow (default: no limit)",
    )
    command.add_argument("--verify", action="store_true", help="compare the checksums of both sides at the end")


def add_base(command: argparse.ArgumentParser) -> None:
    """Add the option of updates by a bitmap."""
    command.add_argument(
        "--base",
        metavar="CHECKSUM",
        help="with --update, of the source when its bitmap began: a target that has it is not compared but a sample",
    )


def add_dry_run(command: argparse.ArgumentParser) -> None:
    """Add the option to change nothing."""
    command.add_argument(
        "--dry-run", action="store_true", help="only tell what would be transferred, and what would be refused"
    )


def add_room_check(command: argparse.ArgumentParser) -> None:
    """Add the option to begin without room."""
    command.add_argument(
        "--no-room-check",
        dest="room_check",
        action="store_false",
        help="begin even if the target seems to have no room",
    )


def add_format(command: argparse.ArgumentParser) -> None:
    """Add the format of the local image."""
    command.add_argument(
        "--format",
        type=_format,
        metavar="NAME",
        help="format of IMAGE: raw, qcow2, vmdk, what qemu knows (default: by its suffix, or else raw)",
    )


def add_shared(command: argparse.ArgumentParser) -> None:
    """Add the option for images that other programs use."""
    command.add_argument("--shared", action="store_true", help="even if another program uses the local image")


def add_state(command: argparse.ArgumentParser, restart: str) -> "argparse._MutuallyExclusiveGroup":
    """Add the options for continuing transfers. Return the group of options on earlier transfers."""
    state = command.add_mutually_exclusive_group()
    state.add_argument(
        "--state-dir",
        dest="state",
        default=True,
        metavar="DIR",
        help="where to keep what is done, for the next command (default: ~/.local/state/imageio-client)",
    )
    state.add_argument("--no-state", dest="state", action="store_false", help="keep it nowhere")
    again = command.add_mutually_exclusive_group()
    again.add_argument("--restart", action="store_true", help=restart)
    return again


def _format(text: str) -> str:
    if not re.fullmatch("[a-z0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a format")
    return text


def _rate(text: str) -> int:
    if (rate := parse_size(text)) < LEAST_RATE:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {LEAST_RATE} bytes per second")
    return rate


def _connections(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CONNECTIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_CONNECTIONS}")
    return int(text)
