# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl events`, which prints who has changed what."""

import argparse
import pwd
import time
from collections.abc import Mapping
from typing import Any

from . import output
from .service import ControlService

#: Seconds between two requests with --follow.
INTERVAL = 1.0
#: Keys that have a place of their own in a line.
_PLACED = ("number", "time", "event", "uid", "pid", "client")


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Print a line for each event, oldest first."""
    last = 0
    while True:
        events: list[dict[str, Any]] = service.get(f"/events?after={last}")
        for event in events:
            if options.json:
                output.json_line(event)
            else:
                print(output.printable(text(event)), flush=True)
            last = event["number"]
        if not options.follow:
            return
        time.sleep(INTERVAL)


def text(event: Mapping[str, Any]) -> str:
    """Return the line of an event for people."""
    details = " ".join(f"{name}={output.quoted(value)}" for name, value in event.items() if name not in _PLACED)
    return f"{event['time']} {_who(event)}: {event['event']} {details}".rstrip()


def _who(event: Mapping[str, Any]) -> str:
    """Return who asked for the change: a user and process, the address of a TCP client, or the daemon itself."""
    if "uid" not in event:
        return str(event.get("client", "daemon"))
    try:
        user = pwd.getpwuid(event["uid"]).pw_name
    except KeyError:
        user = str(event["uid"])
    return f"{user}[{event['pid']}]"
