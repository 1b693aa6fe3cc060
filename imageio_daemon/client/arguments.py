# SPDX-License-Identifier: Apache-2.0
"""The command line of imageio-client. docs/imageio-client.1 describes the same; a test compares them."""

import argparse
import re
from typing import TypeAlias

from .. import __version__
from ..amounts import parse_seconds, parse_size
from ..image.blockhash import DEFAULT_ALGORITHM, DEFAULT_BLOCK
from .local.formats import COMPRESSIONS
from .server.session import RETRY_FOR

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

IMAGE_URL = "https://HOST:PORT/images/TICKET"
MAX_CONNECTIONS = 64


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command. Its result has `command`."""
    main = argparse.ArgumentParser(prog="imageio-client", description="Move disk images to and from a server.")
    main.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_upload(commands)
    _add_download(commands)
    _add_questions(commands)
    return main


def _command(commands: _Commands, name: str, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text[0].lower() + text[1:-1], description=text)
    output = command.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="write one JSON object per line to standard output")
    amount = output.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    amount.add_argument("-v", "--verbose", action="store_true", help="tell what happens, repeated requests too")
    return command


def _add_server(command: argparse.ArgumentParser) -> None:
    server = command.add_argument_group("server")
    server.add_argument("--cafile", metavar="FILE", help="trust the authorities in this file, not those of the system")
    server.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="sha256//BASE64",
        help="trust a server with this public key, as curl's --pinnedpubkey; may be given several times",
    )
    server.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")
    way = server.add_mutually_exclusive_group()
    way.add_argument(
        "--unix-socket", metavar="PATH", help="connect to the local service of this host; @NAME is an abstract socket"
    )
    way.add_argument("--no-local", action="store_true", help="do not look for the local service of this host")
    server.add_argument(
        "--retry-for",
        type=parse_seconds,
        default=RETRY_FOR,
        metavar="TIME",
        help="go on for so long while the server or the network is away: 90, 30m, 2h (default: 2m)",
    )


def _add_connections(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--connections",
        type=_number(1, MAX_CONNECTIONS),
        metavar="N",
        help="use up to N connections (default: what seems useful)",
    )
    command.add_argument("--verify", action="store_true", help="compare the checksums of both sides at the end")


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format",
        type=_format,
        metavar="NAME",
        help="format of IMAGE: raw, qcow2, vmdk, what qemu knows (default: by its suffix, or else raw)",
    )


def _add_shared(command: argparse.ArgumentParser) -> None:
    command.add_argument("--shared", action="store_true", help="even if another program uses the local image")


def _add_upload(commands: _Commands) -> None:
    command = _command(commands, "upload", "Make the image at a URL read as a local one.")
    command.add_argument("image", metavar="IMAGE", help="a file, block device or rbd:POOL/IMAGE; - is standard input")
    command.add_argument("url", metavar="URL", nargs="+", help=f"{IMAGE_URL}; with --all one for each disk")
    _add_format(command)
    members = command.add_mutually_exclusive_group()
    members.add_argument(
        "--member",
        metavar="NAME",
        help="upload this member of the tar archive IMAGE (default: the one disk of an .ova or .tar)",
    )
    members.add_argument("--all", action="store_true", help="upload all disks of the archive IMAGE, in its order")
    command.add_argument(
        "--decompress",
        choices=sorted(COMPRESSIONS.values()),
        help="decompress IMAGE on the way (default: by its suffix, .gz, .xz, .zst or .bz2, without --format)",
    )
    command.add_argument(
        "--size",
        type=parse_size,
        metavar="BYTES",
        help="size of standard input, or of what is decompressed; K, M, G, T may follow",
    )
    again = command.add_mutually_exclusive_group()
    again.add_argument("--restart", action="store_true", help="send all, also what an earlier upload has sent")
    again.add_argument(
        "--compare-all", action="store_true", help="compare all that an earlier upload has sent, not a sample"
    )
    state = command.add_mutually_exclusive_group()
    state.add_argument(
        "--state-dir",
        metavar="DIR",
        help="where to keep what is done, for the next ticket (default: ~/.local/state/imageio-client)",
    )
    state.add_argument("--no-state", action="store_true", help="keep it nowhere")
    command.add_argument("--no-room-check", action="store_true", help="begin even if the target seems to have no room")
    command.add_argument(
        "--wire-compression",
        choices=["auto", "always", "never"],
        default="auto",
        help="send data compressed, but over a unix socket: where it is faster, each piece, or none (default: auto)",
    )
    _add_shared(command)
    _add_connections(command)
    _add_server(command)


def _add_download(commands: _Commands) -> None:
    command = _command(commands, "download", "Make a local image read as the one at a URL.")
    command.add_argument("url", metavar="URL", help=IMAGE_URL)
    command.add_argument(
        "image", metavar="IMAGE", help="a file to make, a block device or rbd:POOL/IMAGE; - is standard output"
    )
    _add_format(command)
    command.add_argument("--compress", action="store_true", help="compress the clusters of a qcow2 image")
    command.add_argument(
        "--dirty", action="store_true", help="only what has changed, into a copy that exists or a new qcow2"
    )
    _add_shared(command)
    _add_connections(command)
    _add_server(command)


def _add_questions(commands: _Commands) -> None:
    command = _command(commands, "info", "Tell about an image.")
    command.add_argument("image", metavar="URL|IMAGE", help=f"{IMAGE_URL}, or a local image")
    _add_format(command)
    _add_server(command)
    command = _command(commands, "extents", "List what is data and what is zero.")
    command.add_argument("url", metavar="URL", help=IMAGE_URL)
    command.add_argument("--dirty", action="store_true", help="list what has changed since a checkpoint")
    _add_server(command)
    command = _command(commands, "checksum", "Print the checksum of an image.")
    command.add_argument("image", metavar="URL|IMAGE", help=f"{IMAGE_URL}, or a local image")
    _add_format(command)
    _add_shared(command)
    command.add_argument("--algorithm", default=DEFAULT_ALGORITHM, metavar="NAME", help="default: %(default)s")
    command.add_argument(
        "--block-size", type=parse_size, default=DEFAULT_BLOCK, metavar="BYTES", help="default: %(default)s"
    )
    _add_server(command)


def _format(text: str) -> str:
    if not re.fullmatch("[a-z0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a format")
    return text


class _number:  # noqa: N801 - used as a function
    """Parse a number between two limits, both included."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def __call__(self, text: str) -> int:
        if not text.isdecimal() or not self._least <= int(text) <= self._most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {self._least} to {self._most}")
        return int(text)
