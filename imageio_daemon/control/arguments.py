# SPDX-License-Identifier: Apache-2.0
"""The command line of imageioctl. docs/imageioctl.1 describes the same; a test compares them."""

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from .. import __version__
from ..commands import completion
from ..commands.amounts import parse_seconds, parse_size
from ..image.formats import FORMATS
from . import certificate, check, events, settings, tickets, top, transfers
from .service import DEFAULT_SOCKET, ControlService

#: A function that carries out a command as its options say, and prints the result. It raises ControlError.
Command: TypeAlias = Callable[[argparse.Namespace, ControlService], None]
_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"

DEFAULT_CONF_DIR = "/etc/imageio-daemon"
SERVICE_GROUP = "imageio"
#: Most days of a certificate: macOS refuses servers with more.
MAX_DAYS = 825
LEVELS = ("debug", "info", "warning", "error")
RATE = "per second, 0: no limit; K, M, G may follow"
EXAMPLES = """\
examples:
  imageioctl check
  imageioctl ticket add --write --sparse /images/disk.raw
  imageioctl share --read --timeout 1d /images/disk.raw
  imageioctl transfers --watch
  imageioctl ticket add --help"""


class _Parser(argparse.ArgumentParser):
    """A parser that takes names and options in any order, as other programs do."""

    _in_any_order = False

    def parse_known_args(self, args: Any, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the arguments. argparse alone refuses names after an option if there are some before it, too."""
        # After --, names may begin with a dash, which only argparse's usual way accepts.
        if self._in_any_order or any(action.nargs == argparse.PARSER for action in self._actions) or "--" in args:
            return super().parse_known_args(args, namespace)
        self._in_any_order = True  # argparse calls this method again
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._in_any_order = False


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command. Its result has `run`, a Command."""
    main = _Parser(
        prog="imageioctl",
        description="Manage the imageio-daemon of this host.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    completion.add_option(main)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_ticket(commands)
    _add_share(commands)
    _add_views(commands)
    _add_check(commands)
    _add_certificate(commands)
    _add_settings(commands)
    return main


def _command(
    commands: _Commands, name: str, run: Command, text: str, *, changes: bool = False
) -> argparse.ArgumentParser:
    """Add a command. A command that `changes` something does it all, even if its output cannot be written."""
    command = commands.add_parser(name, help=text[0].lower() + text[1:-1], description=text)
    command.set_defaults(run=run, changes=changes)
    common = command.add_argument_group("common")
    common.add_argument(
        "--socket", default=DEFAULT_SOCKET, metavar="PATH", help="the control socket (default: %(default)s)"
    )
    common.add_argument("--json", action="store_true", help="print one JSON object per line")
    return command


def _add_ticket(commands: _Commands) -> None:
    text = "Add, show, extend, limit and remove tickets."
    actions = commands.add_parser("ticket", help=text[0].lower() + text[1:-1], description=text).add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    _add_ticket_add(_command(actions, "add", tickets.add, "Install a ticket for an image, and print its id."))
    command = _command(actions, "list", tickets.list_all, "Print a line for each ticket.")
    _add_show_ids(command)
    command = _command(actions, "show", tickets.show, "Print all that is known of tickets.")
    _add_show_ids(command)
    _add_selection(command)
    command = _command(actions, "extend", tickets.extend, "Let tickets expire later.", changes=True)
    command.add_argument(
        "--timeout", type=parse_seconds, default=300, metavar="TIME", help="from now, 0: now (default: 5m)"
    )
    _add_selection(command)
    text = "Limit tickets to a rate, also while they are used."
    command = _command(actions, "limit", tickets.limit, text, changes=True)
    command.add_argument("--rate", type=parse_size, metavar="BYTES", required=True, help=RATE)
    _add_selection(command)
    text = "Remove tickets, and wait until their transfers have ended."
    command = _command(actions, "remove", tickets.remove, text, changes=True)
    command.add_argument("--all", action="store_true", help="all tickets")
    command.add_argument("--yes", action="store_true", help="do not ask on a terminal")
    _add_selection(command)


def _add_share(commands: _Commands) -> None:
    command = _command(commands, "share", tickets.link, "Print a link by which a browser transfers an image.")
    allowed = command.add_mutually_exclusive_group(required=True)
    allowed.add_argument("--read", dest="ops", action="store_const", const="read", help="for a download")
    allowed.add_argument("--write", dest="ops", action="store_const", const="write", help="for an upload")
    command.add_argument("--host", metavar="NAME", help="of this host, as in its certificate (default: its own name)")
    _add_image(command, timeout="1h")


def _add_ticket_add(command: argparse.ArgumentParser) -> None:
    allowed = command.add_mutually_exclusive_group()
    allowed.set_defaults(ops="both")
    allowed.add_argument("--read-only", dest="ops", action="store_const", const="read", help="for a download")
    # A ticket that may write may also read (docs/images-api.md). --write-only is a wrong name, kept for scripts.
    text = "for an upload, and it may read, too"
    allowed.add_argument("--write", "--write-only", dest="ops", action="store_const", const="write", help=text)
    _add_image(command, timeout="5m")


def _add_image(command: argparse.ArgumentParser, timeout: str) -> None:
    """Add the options of a new ticket, except those of what it allows. `timeout` is the default lifetime."""
    command.add_argument("image", metavar="IMAGE", help="path of the image, or its url as tickets have it")
    command.add_argument(
        "--id", metavar="ID", help="the ticket's id, visible in ps; - reads it from standard input (default: random)"
    )
    command.add_argument("--size", type=parse_size, metavar="BYTES", help="K, M, G, T may follow (default: its own)")
    command.add_argument(
        "--timeout",
        type=parse_seconds,
        default=parse_seconds(timeout),
        metavar="TIME",
        help=f"lifetime; requests renew it (default: {timeout})",
    )
    command.add_argument("--inactivity-timeout", type=parse_seconds, metavar="TIME", help="of idle connections")
    command.add_argument("--sparse", action="store_true", help="zeroing may free space")
    command.add_argument("--format", choices=FORMATS, default="raw", help="of the image (default: %(default)s)")
    command.add_argument("--no-backing-chain", action="store_true", help="without the files below the image")
    command.add_argument("--dirty", action="store_true", help="the image can tell what has changed")
    command.add_argument("--shared", action="store_true", help="other programs may use the image meanwhile")
    command.add_argument("--bitmap", metavar="NAME", help="the bitmap of a qcow2 that tells it")
    command.add_argument("--since", metavar="SNAPSHOT", help="the snapshot of an image on Ceph that tells it")
    command.add_argument("--filename", metavar="NAME", help="the name offered to browsers")
    command.add_argument("--rate", type=parse_size, metavar="BYTES", help=RATE)
    command.add_argument("--tenant", metavar="NAME", help="whose tickets share a limit")
    command.add_argument("--transfer-id", metavar="NAME", help="the name in logs and lists (default: made of the id)")


def _add_selection(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "transfers", nargs="*", metavar="TRANSFER", help="name in `ticket list`; - reads ids from standard input"
    )
    command.add_argument("--id", action="append", metavar="ID", help="the ticket with this id, visible in ps")


def _add_show_ids(command: argparse.ArgumentParser) -> None:
    command.add_argument("--show-ids", action="store_true", help="print ids, which give access to the images")


def _add_views(commands: _Commands) -> None:
    command = _command(commands, "transfers", transfers.show, "Print a line for each transfer that is in use.")
    command.add_argument("--watch", action="store_true", help="again each second")
    _command(commands, "top", top.show, "Show transfers and their clients on the whole terminal, until q is pressed.")
    command = _command(commands, "events", events.show, "Print who has added, extended and removed tickets.")
    command.add_argument("--follow", action="store_true", help="go on with those that happen now, until Ctrl-C")


def _add_check(commands: _Commands) -> None:
    command = _command(commands, "check", check.show, "Check what the service needs, as its user, and if it serves.")
    command.add_argument(
        "paths", nargs="*", metavar="PATH", help="an image, also rbd:…, or a directory, that it should reach"
    )
    command.add_argument("--conf-dir", default=DEFAULT_CONF_DIR, metavar="DIR", help="default: %(default)s")
    command.add_argument("--ready", action="store_true", help="a daemon that does not run is a failure")


def _add_certificate(commands: _Commands) -> None:
    command = _command(commands, "certificate", certificate.make, "Make a certificate and its key, for a first try.")
    command.add_argument(
        "--self-signed",
        required=True,
        nargs="?",
        metavar="NAME",
        help="of this host, as clients know it; no authority is needed",
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="further names and addresses of this host")
    command.add_argument("--days", type=_days, default=30, metavar="COUNT", help="default: %(default)s")
    command.add_argument(
        "--directory", default=DEFAULT_CONF_DIR, metavar="DIR", help="of cert.pem and key.pem (default: %(default)s)"
    )
    command.add_argument("--group", default=SERVICE_GROUP, help="of the key's readers (default: %(default)s)")
    command.add_argument("--force", action="store_true", help="replace what is there")


def _days(text: str) -> int:
    days = int(text) if text.isdecimal() and len(text) <= len(str(MAX_DAYS)) else 0
    if not 0 < days <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"between 1 and {MAX_DAYS}")
    return days


def _add_settings(commands: _Commands) -> None:
    command = _command(commands, "log-level", settings.log_level, "Print or change the level of the daemon's log.")
    command.add_argument("level", nargs="?", choices=LEVELS, help="change to this level")
    command.add_argument(
        "--for", dest="seconds", type=parse_seconds, metavar="TIME", help="then to the configured one again"
    )
    text = "Print or change the limits on what transfers take."
    actions = commands.add_parser("limits", help=text[0].lower() + text[1:-1], description=text).add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    _command(actions, "show", settings.show_limits, "Print the limits in force.")
    command = _command(actions, "set", settings.change_limits, "Change limits, also for transfers that run.")
    command.add_argument("--rate", type=parse_size, metavar="BYTES", help=f"of each ticket that tells none, {RATE}")
    command.add_argument(
        "--tenant-rate", type=parse_size, metavar="BYTES", help=f"of all tickets of a tenant together, {RATE}"
    )
    command.add_argument("--transfers", type=int, metavar="COUNT", help="most at work at a time, 0: no limit")
    command = _command(
        actions, "tenant", settings.limit_tenants, "Change the limits of single tenants, also for what runs."
    )
    command.add_argument("tenants", nargs="+", metavar="TENANT", help="the name that tickets tell")
    wanted = command.add_mutually_exclusive_group(required=True)
    wanted.add_argument(
        "--rate", type=parse_size, metavar="BYTES", help=f"of all tickets of the tenant together, {RATE}"
    )
    wanted.add_argument("--common", action="store_true", help="that of --tenant-rate again, as for other tenants")
