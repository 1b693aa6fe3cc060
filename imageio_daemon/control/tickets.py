# SPDX-License-Identifier: Apache-2.0
"""The commands `imageioctl ticket …` and `imageioctl share`, which prints a ticket as a link for a browser.

Ids are secrets: commands print and take them only where the options say so.
"""

import argparse
import ipaddress
import os
import re
import socket
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..image import qcow2
from . import output
from .output import columns, shown
from .service import ControlError, ControlService, NoSuchTicket, Usage

#: An argument in place of a name or an id: read ids from standard input, one in each line.
STANDARD_INPUT = "-"

_OPS = {"read": ["read"], "write": ["write"], "both": ["read", "write"]}


def add(options: argparse.Namespace, service: ControlService) -> None:
    """Install a ticket, and print its id, which a client needs for the transfer."""
    ticket_id = install(options, service)
    if options.json:
        output.json_line({"uuid": ticket_id, "transfer": service.ticket(ticket_id)["transfer"]})
    else:
        print(ticket_id)


def install(options: argparse.Namespace, service: ControlService) -> str:
    """Install a ticket as the options say, and return its id."""
    is_path = "://" not in options.image and not options.image.startswith(("nbd:", "rbd:"))
    ticket: dict[str, Any] = {
        "uuid": _given_id(options.id) if options.id is not None else str(uuid.uuid4()),
        "url": f"file://{Path(options.image).absolute()}" if is_path else options.image,
        "size": options.size if options.size is not None else _size(options.image, options.format, is_path=is_path),
        "timeout": options.timeout,
        "ops": _OPS[options.ops],
        "sparse": options.sparse,
        "dirty": options.dirty or options.bitmap is not None or options.since is not None,
        "shared": options.shared,
        "format": options.format,
        "backing_chain": not options.no_backing_chain,
    }
    for name in ("inactivity_timeout", "filename", "transfer_id", "bitmap", "since", "rate", "tenant"):
        if (value := getattr(options, name)) is not None:
            ticket[name] = value
    service.add(ticket)
    return str(ticket["uuid"])


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Print all that is known of tickets."""
    for number, state in enumerate(_selected(options, service)):
        if options.json:
            output.json_line(shown(state, ids=options.show_ids))
            continue
        if number:
            print()
        output.pairs(shown(state, ids=options.show_ids, people=True))


def list_all(options: argparse.Namespace, service: ControlService) -> None:
    """Print a line for each ticket."""
    states = service.tickets()
    if options.json:
        for state in states:
            output.json_line(shown(state, ids=options.show_ids))
        return
    head, rows = columns(states, ids=options.show_ids)
    print("\n".join(output.table(head, rows, left=("OPS",))))


def extend(options: argparse.Namespace, service: ControlService) -> None:
    """Let tickets expire later, or now."""
    _change(options, service, timeout=options.timeout)


def limit(options: argparse.Namespace, service: ControlService) -> None:
    """Limit tickets to a rate, also requests that run."""
    _change(options, service, rate=options.rate)


def _change(options: argparse.Namespace, service: ControlService, **changes: int) -> None:
    for state in _selected(options, service):
        service.change(state["uuid"], changes)
        if options.json:
            output.json_line({"transfer": state["transfer"], **changes})


def remove(options: argparse.Namespace, service: ControlService) -> None:
    """Remove tickets, one after the other, and wait until each has ended."""
    if options.all and (options.transfers or options.id):
        raise Usage("--all is for all tickets")
    states = service.tickets() if options.all else _selected(options, service)
    if options.all and not options.yes and sys.stdin.isatty():
        question = f"Remove {len(states)} tickets, and end their transfers? [y/N] "
        service.close()  # the daemon does so after a minute, and people may think for longer
        if input(question).strip().lower() not in ("y", "yes"):
            raise ControlError("nothing was removed")
    for state in states:
        service.remove(state["uuid"])
        if options.json:
            output.json_line({"transfer": state["transfer"]})


def _selected(options: argparse.Namespace, service: ControlService) -> list[dict[str, Any]]:
    """Return the states of the tickets that the arguments name. Raises NoSuchTicket, Usage."""
    names = [name for name in options.transfers if name != STANDARD_INPUT]
    ids = [ticket_id for given in options.id or () for ticket_id in _given_ids(given)]
    if STANDARD_INPUT in options.transfers:
        ids += _read_ids()
    if not names and not ids:
        raise Usage("which ticket? Name it as `imageioctl ticket list` does")
    return [_named(name, service) for name in names] + [service.ticket(ticket_id) for ticket_id in ids]


def _named(name: str, service: ControlService) -> dict[str, Any]:
    found = service.tickets(transfer=name)
    if len(found) != 1:
        count = f"{len(found)} tickets have" if found else "no ticket has"
        raise NoSuchTicket(f"{count} the name {output.printable(name)}{': use --id' if found else ''}")
    return found[0]


def _given_id(given: str) -> str:
    ids = _given_ids(given)
    if len(ids) != 1:
        raise Usage("expected one id on standard input")
    return ids[0]


def _given_ids(given: str) -> list[str]:
    return _read_ids() if given == STANDARD_INPUT else [given]


def _read_ids() -> list[str]:
    try:
        return [line.strip() for line in sys.stdin if line.strip()]
    except OSError as e:
        raise ControlError(f"can't read standard input: {e.strerror}") from e


def _size(image: str, format_name: str, *, is_path: bool) -> int:
    """Return the size of the disk in a local image. Raises Usage if it cannot be told."""
    if not is_path:
        raise Usage("--size is needed for an image that is no local path")
    if format_name not in ("raw", "qcow2"):
        raise Usage(f"--size is needed for {format_name}: the virtual size that `qemu-img info` tells")
    try:
        fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if format_name == "raw":
                return os.lseek(fd, 0, os.SEEK_END)
            return qcow2.disk_size(lambda offset, length: os.pread(fd, length, offset))
        finally:
            os.close(fd)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise Usage(f"--size is needed: can't tell that of {output.printable(image)}: {reason}") from None


#: File names that a header field can have without quotes (RFC 6266, 4.1; RFC 9110, 5.6.2).
_OFFERED = re.compile(r"[\w.!#$&+^`|~-]+", re.ASCII)
#: The host of a link: a name or an address.
_HOST = re.compile(r"[\w.:-]+", re.ASCII)


def link(options: argparse.Namespace, service: ControlService) -> None:
    """Install a ticket, and print the link, which is as secret as the ticket's id. Raises Usage, ControlError."""
    remote = service.get("/status").get("remote", {})
    if not remote.get("ui"):
        raise ControlError("the daemon does not serve the page: enable = true in [ui] of its configuration")
    host = _host(options.host if options.host is not None else socket.getfqdn())
    if options.filename is None and "://" not in options.image and _OFFERED.fullmatch(name := Path(options.image).name):
        options.filename = name
    ticket_id = install(options, service)
    # Browsers do not send the fragment to servers, so the id comes into no log and no header (RFC 9110, 4.2.5).
    url = f"{'https' if remote['tls'] else 'http'}://{host}:{remote['port']}/ui/#{quote(ticket_id, safe='')}"
    if options.json:
        transfer = service.ticket(ticket_id)["transfer"]
        output.json_line({"url": url, "uuid": ticket_id, "transfer": transfer})
    else:
        print(url)


def _host(name: str) -> str:
    """Return a host as URLs write it: IPv6 addresses in brackets (RFC 3986, 3.2.2). Raises Usage."""
    try:
        if "%" not in name:  # a zone, which links cannot have
            return f"[{name}]" if ipaddress.ip_address(name).version == 6 else name
    except ValueError:
        if _HOST.fullmatch(name) and ":" not in name:
            return name
    raise Usage(f"{output.printable(name[:253])} is neither a host name nor an address")
