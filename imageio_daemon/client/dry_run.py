# SPDX-License-Identifier: Apache-2.0
"""The option --dry-run of the command, which prints what a transfer would do, and changes nothing."""

import json

from ..commands.amounts import human
from ..commands.printable import printable
from .transfer.preview import Preview


def show(told: Preview, *, as_json: bool) -> None:
    """Print what a transfer would do. Raises ClientError if the transfer would be refused."""
    shown = {name: printable(value) if isinstance(value, str) else value for name, value in vars(told).items()}
    values = {name: value for name, value in shown.items() if name != "refused"}
    if as_json:
        print(json.dumps({"event": "preview", **values, "refused": [str(error) for error in told.refused]}), flush=True)
    else:
        for name, value in values.items():
            if value is not None:
                print(f"{name.replace('_', ' ')}: {_text(value)}")
        for error in told.refused[1:]:
            print(f"refused, too: {error}")
    for error in told.refused:
        raise error


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value} ({human(value)})" if isinstance(value, int) and value >= 1024 else str(value)
