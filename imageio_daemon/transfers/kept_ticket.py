# SPDX-License-Identifier: Apache-2.0
"""The file of a kept ticket: its bytes, and how much of the ticket's life is left when they are read.

The first line has the SHA-256 of the rest, in hex. The rest is a JSON object: "ticket"; "remaining", the seconds that
were left when it was written; "written", the clocks at that time; "state".
"""

import functools
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidRequest
from .ticket import Ticket

#: Most bytes of a file. A ticket with the longest texts, all escaped in JSON, has 50 KiB.
MAX_TICKET_FILE = 256 * 1024

_DIGEST = 64  # hex digits


class Clocks(NamedTuple):
    """The time, as far as it can be compared with the time of another process.

    `boot` is the id of the boot, `boottime` the seconds since the boot, with those in suspend (CLOCK_BOOTTIME), and
    `wall` the seconds since 1970.
    """

    boot: str
    boottime: float
    wall: float

    @classmethod
    def read(cls) -> "Clocks":
        """Read the clocks."""
        return cls(_boot(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())

    def since(self, then: "Clocks") -> float:
        """Return the seconds that have passed since then, rather too many than too few. Infinity if a clock went back.

        After a reboot this is the difference of the wall clocks, but at least the time since the boot.
        """
        passed = self.boottime - then.boottime if self.boot == then.boot else self.wall - then.wall
        if passed < 0:
            return math.inf
        return passed if self.boot == then.boot else max(passed, self.boottime)


class KeptTicket(NamedTuple):
    """A kept ticket, which expires in `remaining` seconds. `state` has the JSON values that are kept with it."""

    ticket: Ticket
    remaining: float
    state: dict[str, Any]

    def encode(self, now: Clocks) -> bytes:
        """Return the bytes of the file. Raises InvalidRequest if there are more than MAX_TICKET_FILE."""
        ticket = self.ticket.to_json()
        ticket.pop("transfer_id", None)  # in to_json(), it may be a name that the daemon has made
        if self.ticket.transfer_id is not None:
            ticket["transfer_id"] = self.ticket.transfer_id
        content = {"ticket": ticket, "remaining": self.remaining, "written": now._asdict(), "state": self.state}
        text = json.dumps(content).encode()
        data = hashlib.sha256(text).hexdigest().encode() + b"\n" + text
        if len(data) > MAX_TICKET_FILE:
            raise InvalidRequest(f"A kept ticket has at most {MAX_TICKET_FILE} bytes")
        return data

    @classmethod
    def decode(cls, data: bytes, now: Clocks) -> "KeptTicket":
        """Return the ticket of a file, with the seconds that remain of its life now, 0 or less if it has expired.

        Raises InvalidRequest for anything but the bytes of encode(). The reason never has the ticket id.
        """
        digest, newline, text = data[:_DIGEST], data[_DIGEST : _DIGEST + 1], data[_DIGEST + 1 :]
        if newline != b"\n" or digest != hashlib.sha256(text).hexdigest().encode():
            raise InvalidRequest("its checksum is wrong")
        try:
            content = json.loads(text)
            then = Clocks(**content["written"])
            remaining, state = content["remaining"] - now.since(then), content["state"]
            # The ticket has its own inactivity timeout: to_json() always writes it.
            ticket = Ticket.from_json(content["ticket"], inactivity_timeout=1)
        except (ValueError, ArithmeticError, RecursionError, LookupError, TypeError):
            raise InvalidRequest("it is not a record of a ticket") from None
        if not isinstance(remaining, float) or not remaining < math.inf or not isinstance(state, dict):
            raise InvalidRequest("it is not a record of a ticket")
        return cls(ticket, remaining, state)


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def file_name(ticket_id: str) -> str:
    """Return the name of a ticket's file, which does not reveal the id."""
    return hashlib.sha256(b"kept ticket " + ticket_id.encode()).hexdigest()
