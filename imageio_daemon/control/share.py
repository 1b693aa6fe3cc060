# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl share`: a ticket, printed as a link to the page where a browser transfers the image."""

import argparse
import ipaddress
import re
import socket
from pathlib import Path
from urllib.parse import quote

from . import output, tickets
from .errors import ControlError, Usage
from .service import ControlService

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
    ticket_id = tickets.install(options, service)
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
