# SPDX-License-Identifier: Apache-2.0
"""The command line of imageio-client. docs/imageio-client.1 describes the same; a test compares them."""

import argparse

from .. import __version__
from ..commands import completion
from ..commands.amounts import parse_size
from ..image.blockhash import DEFAULT_ALGORITHM, DEFAULT_BLOCK
from .argument_groups import (
    Commands,
    Parser,
    add_base,
    add_command,
    add_connections,
    add_dry_run,
    add_format,
    add_room_check,
    add_server,
    add_shared,
    add_state,
)
from .local.formats import COMPRESSIONS

IMAGE_URL = "https://HOST:PORT/images/TICKET"
#: Examples of what people do most.
EXAMPLES = """\
examples:
  imageio-client upload --cafile ca.pem disk.qcow2 https://host:54322/images/TICKET
  imageio-client download --cafile ca.pem https://host:54322/images/TICKET copy.qcow2
  imageio-client info --cafile ca.pem https://host:54322/images/TICKET
  imageio-client upload --help"""
OF_UPLOAD = """\
examples:
  imageio-client upload --cafile ca.pem disk.qcow2 https://host:54322/images/TICKET
  imageio-client upload --dry-run appliance.ova https://host:54322/images/TICKET
  imageio-client upload --verify --rate 20M /dev/vg/disk https://host:54322/images/TICKET
  zcat disk.raw.gz | imageio-client upload --size 10G - https://host:54322/images/TICKET

The same command continues an upload that was interrupted."""
OF_DOWNLOAD = """\
examples:
  imageio-client download --cafile ca.pem https://host:54322/images/TICKET copy.qcow2
  imageio-client download https://host:54322/images/TICKET copy.raw.zst
  imageio-client download https://host:54322/images/TICKET - | sha256sum

The same command continues a download that was interrupted, of a raw or a qcow2 file."""
OF_COPY = """\
examples:
  imageio-client copy https://one:54322/images/TICKET https://other:54322/images/TICKET

The same command continues a copy that was interrupted."""

OF_NBD = """\
examples:
  imageio-client nbd --cafile ca.pem https://host:54322/images/TICKET image.sock &
  nbdcopy "nbd+unix:///?socket=image.sock" copy.raw
  qemu-img convert -O qcow2 "nbd+unix:///?socket=image.sock" copy.qcow2

It ends at Ctrl-C, and removes the socket."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command. Its result has `command`."""
    text = "Move disk images to and from a server."
    main = Parser(
        prog="imageio-client",
        description=text,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    completion.add_option(main)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_upload(commands)
    _add_download(commands)
    _add_copy(commands)
    _add_questions(commands)
    _add_nbd(commands)
    return main


def _add_upload(commands: Commands) -> None:
    command = add_command(commands, "upload", "Make the image at a URL read as a local one.", OF_UPLOAD)
    command.add_argument(
        "image", metavar="IMAGE", help="a file, block device, https:…, nbd:… or rbd:…; - is standard input"
    )
    command.add_argument("url", metavar="URL", nargs="+", help=f"{IMAGE_URL}; with --all one for each disk")
    add_format(command)
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
    command.add_argument(
        "--expect", metavar="sha256:HEX", help="the digest of the file IMAGE as it was published, to be compared"
    )
    command.add_argument(
        "--source-cafile", metavar="FILE", help="trust the authorities in this file for the web server of IMAGE"
    )
    again = add_state(command, "send all, also what an earlier upload has sent")
    again.add_argument("--update", action="store_true", help="send only what differs from what the target has; verify")
    add_base(command)
    command.add_argument(
        "--bitmap", metavar="NAME", help="with --base, the dirty bitmap of a qcow2 image or an nbd:… that began then"
    )
    again.add_argument(
        "--compare-all", action="store_true", help="compare all that an earlier upload has sent, not a sample"
    )
    add_room_check(command)
    command.add_argument(
        "--wire-compression",
        choices=["auto", "always", "never"],
        default="auto",
        help="send data compressed, but over a unix socket: where it is faster, each piece, or none (default: auto)",
    )
    add_shared(command)
    add_connections(command)
    add_dry_run(command)
    add_server(command)


def _add_download(commands: Commands) -> None:
    command = add_command(commands, "download", "Make a local image read as the one at a URL.", OF_DOWNLOAD)
    command.add_argument("url", metavar="URL", help=IMAGE_URL)
    command.add_argument(
        "image",
        metavar="IMAGE",
        help="a file to make, a block device, rbd:… or nbd:…; - is standard output",
    )
    add_format(command)
    command.add_argument("--compress", action="store_true", help="compress the clusters of a qcow2 image")
    again = add_state(command, "receive all, also what an earlier download has left")
    again.add_argument(
        "--dirty", action="store_true", help="only what has changed, into a copy that exists or a new qcow2"
    )
    again.add_argument(
        "--update", action="store_true", help="write only what differs, into a file or device that exists; verify"
    )
    add_base(command)
    command.add_argument(
        "--manifest", metavar="FILE", help="write the digest of each block to FILE, for the command verify"
    )
    add_shared(command)
    add_connections(command)
    add_dry_run(command)
    add_server(command)


def _add_copy(commands: Commands) -> None:
    command = add_command(commands, "copy", "Make the image at a URL read as the one at another URL.", OF_COPY)
    command.add_argument("url", metavar="URL", nargs=2, help=f"{IMAGE_URL}, first of the source, then of the target")
    again = add_state(command, "send all, also what an earlier copy has sent")
    again.add_argument("--update", action="store_true", help="send only what differs from what the target has; verify")
    add_base(command)
    add_room_check(command)
    add_connections(command)
    add_server(command)


def _add_nbd(commands: Commands) -> None:
    command = add_command(commands, "nbd", "Serve the image at a URL on a unix socket, to programs of NBD.", OF_NBD)
    command.add_argument("url", metavar="URL", help=IMAGE_URL)
    command.add_argument("socket", metavar="SOCKET", nargs="?", help="the socket to make (default: in a new directory)")
    add_server(command)


def _add_questions(commands: Commands) -> None:
    command = add_command(commands, "info", "Tell about an image.")
    command.add_argument("image", metavar="URL|IMAGE", help=f"{IMAGE_URL}, or a local image")
    add_format(command)
    add_server(command)
    command = add_command(commands, "extents", "List what is data and what is zero.")
    command.add_argument("url", metavar="URL", help=IMAGE_URL)
    command.add_argument("--dirty", action="store_true", help="list what has changed since a checkpoint")
    add_server(command)
    command = add_command(commands, "checksum", "Print the checksum of an image.")
    command.add_argument("image", metavar="URL|IMAGE", help=f"{IMAGE_URL}, or a local image")
    add_format(command)
    add_shared(command)
    command.add_argument("--algorithm", default=DEFAULT_ALGORITHM, metavar="NAME", help="default: %(default)s")
    command.add_argument(
        "--block-size", type=parse_size, default=DEFAULT_BLOCK, metavar="BYTES", help="default: %(default)s"
    )
    add_server(command)

    command = add_command(commands, "verify", "Compare an image with a manifest.")
    command.add_argument("manifest", metavar="MANIFEST", help="what download --manifest has written")
    command.add_argument("image", metavar="URL|IMAGE", help=f"{IMAGE_URL}, or a local image")
    add_format(command)
    add_shared(command)
    add_server(command)
