# SPDX-License-Identifier: Apache-2.0
"""The commands `imageioctl limits …`: the limits on what transfers take."""

import argparse

from ..amounts import human
from . import output
from .errors import Usage
from .service import ControlService

#: The limits, as the control service names them.
NAMES = ("rate", "tenant_rate", "transfers")


def show(options: argparse.Namespace, service: ControlService) -> None:
    """Print the limits in force."""
    _print(service.get("/limits"), as_json=options.json)


def change(options: argparse.Namespace, service: ControlService) -> None:
    """Change limits, and print those in force."""
    wanted = {name: value for name in NAMES if (value := getattr(options, name)) is not None}
    if not wanted:
        raise Usage("which limit? --rate, --tenant-rate or --transfers")
    _print(service.patch("/limits", wanted), as_json=options.json)


def _print(limits: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        output.json_line(limits)
        return
    for name, value in limits.items():
        amount = str(value) if name == "transfers" else f"{human(value)}/s"
        print(f"{name}: {amount if value else 'no limit'}")
