# SPDX-License-Identifier: Apache-2.0
"""The commands that change a running daemon: `imageioctl limits …` and `imageioctl log-level`."""

import argparse
from typing import Any

from ..commands.amounts import duration, human
from . import output
from .service import ControlService, Usage

#: The limits on transfers, as the control service names them.
NAMES = ("rate", "tenant_rate", "transfers")


def show_limits(options: argparse.Namespace, service: ControlService) -> None:
    """Print the limits in force."""
    _print_limits(service.get("/limits"), as_json=options.json)


def change_limits(options: argparse.Namespace, service: ControlService) -> None:
    """Change limits, and print those in force."""
    wanted = {name: value for name in NAMES if (value := getattr(options, name)) is not None}
    if not wanted:
        raise Usage("which limit? --rate, --tenant-rate or --transfers")
    _print_limits(service.patch("/limits", wanted), as_json=options.json)


def limit_tenants(options: argparse.Namespace, service: ControlService) -> None:
    """Give tenants a rate of their own, or the common one again, and print the limits in force."""
    _print_limits(
        service.patch("/limits", {"tenants": dict.fromkeys(options.tenants, options.rate)}), as_json=options.json
    )


def _print_limits(limits: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.json_line(limits)
        return
    tenants = limits.pop("tenants", {})
    for name, value in limits.items():
        print(f"{name}: {_amount(value, '' if name == 'transfers' else '/s')}")
    for name, value in sorted(tenants.items()):
        print(output.printable(f"tenant {name}: {_amount(value, '/s')}"))


def _amount(value: int, unit: str) -> str:
    if not value:
        return "no limit"
    return f"{human(value)}{unit}" if unit else str(value)


def log_level(options: argparse.Namespace, service: ControlService) -> None:
    """Change the level if one is given, and print it."""
    if options.level is None:
        if options.seconds is not None:
            raise Usage("--for needs a level")
        told: dict[str, Any] = service.get("/log")
    else:
        wanted = {"level": options.level} | ({} if options.seconds is None else {"seconds": options.seconds})
        told = service.put("/log", wanted)
    if options.json:
        output.json_line(told)
    elif told["seconds"] is not None:
        print(f"{told['level']} for {duration(told['seconds'])}, then {told['configured']}")
    else:
        print(told["level"])
