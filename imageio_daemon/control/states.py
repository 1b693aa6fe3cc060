# SPDX-License-Identifier: Apache-2.0
"""How the states of tickets are shown: without secrets, and in tables."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..commands.amounts import duration, human

State = Mapping[str, Any]


def shown(state: State, *, ids: bool, people: bool = False) -> dict[str, Any]:
    """Return a state without its secrets, the id and the url of another server, unless `ids` asks for them.

    For `people`, the expiry is a text with the time that is left.
    """
    told = {name: value for name, value in state.items() if ids or not _is_secret(name, value)}
    if people:
        told["expires"] = left(state)
    return told


def columns(states: Iterable[State], *, ids: bool) -> tuple[Sequence[str], list[Sequence[object]]]:
    """Return head and rows of the table of tickets."""
    head = ["TRANSFER", "OPS", "SIZE", "DONE", "RATE", "IDLE", "EXPIRES", *(["ID"] if ids else [])]
    rows: list[Sequence[object]] = [
        [
            state["transfer"],
            ",".join(state["ops"]) or "-",
            human(state["size"]),
            human(done(state)),
            rate(state),
            duration(state["idle_time"]),
            left(state),
            *([state["uuid"]] if ids else []),
        ]
        for state in states
    ]
    return head, rows


def done(state: State) -> int:
    """Return the bytes of progress, each counted once; for a ticket with both operations, all read, written, zeroed."""
    if "transferred" in state:
        return int(state["transferred"])
    return int(state["read"] + state["written"] + sum(state["zeroed"].values()))


def rate(state: State) -> str:
    """Return the bytes per second as text."""
    return f"{human(state['bytes_per_second'])}/s" if state["bytes_per_second"] else "-"


def left(state: State) -> str:
    """Return the time until a ticket expires as text. `expires` is a time of the host's monotonic clock."""
    if state["canceled"]:
        return "removed"
    seconds = state["expires"] - time.monotonic()
    return f"in {duration(seconds)}" if seconds > 0 else f"expired {duration(-seconds)} ago"


def _is_secret(name: str, value: object) -> bool:
    return name == "uuid" or (name == "url" and not str(value).startswith("file://"))
