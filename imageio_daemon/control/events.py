# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl events`, which prints who has changed what."""

import argparse
import pwd
import sys
import time
from collections.abc import Mapping
from typing import Any

from . import output
from .service import ControlError, ControlService

#: Seconds between two requests with --follow.
INTERVAL = 1.0
#: Keys that have a place of their own in a line.
_PLACED = ("number", "time", "event", "uid", "pid", "client")


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Print a line for each event, oldest first. With --follow go on, also with those of the next daemon."""
    number, at = 0, ""
    events: list[dict[str, Any]] = service.get("/events")
    while True:
        for event in events:
            if options.json:
                output.json_line(event)
            else:
                print(output.printable(text(event)), flush=True)
            number, at = event["number"], event["time"]
        if not options.follow:
            return
        time.sleep(INTERVAL)
        try:
            events = service.get(f"/events?after={number}")
        except ControlError:
            kept = _when_back(service)
            # Without a state directory, a daemon counts its events from 1 on.
            events = [event for event in kept if event["number"] > number or event["time"] > at]
            number = kept[-1]["number"] if kept else 0


def _when_back(service: ControlService) -> list[dict[str, Any]]:
    """Return the events that the daemon keeps, when it answers again. Print once why it does not."""
    told = ""
    while True:
        try:
            events: list[dict[str, Any]] = service.get("/events")
        except ControlError as e:
            if str(e) != told:
                told = str(e)
                print(f"imageioctl: waiting: {told}", file=sys.stderr, flush=True)
            time.sleep(INTERVAL)
        else:
            return events


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
