# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl log-level`: show or change the level of the daemon's log."""

import argparse
from typing import Any

from ..amounts import duration
from . import output
from .errors import Usage
from .service import ControlService


def show(options: argparse.Namespace, service: ControlService) -> None:
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
