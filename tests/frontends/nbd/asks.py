# SPDX-License-Identifier: Apache-2.0
"""Requests made up at random, to be sent to two servers, and what of their answers is compared."""

import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from tests.frontends.nbd.client import Client, Result
from tests.support.images import KiB, MiB


class Ask(NamedTuple):
    """A request."""

    command: int
    offset: int
    length: int
    flags: int
    data: bytes

    def send(self, client: Client) -> int:
        """Send it, and return its cookie."""
        return client.send(self.command, self.offset, self.length, self.flags, data=self.data)


_COMMANDS = [*(command for command in Command if command != Command.DISC), 8, 65535]
#: Most requests are good ones.
_GOOD: Mapping[int, list[int]] = {
    Command.READ: [0, 0, CommandFlag.DF, CommandFlag.FUA],
    Command.WRITE: [0, 0, CommandFlag.FUA],
    Command.WRITE_ZEROES: [0, CommandFlag.NO_HOLE, CommandFlag.FAST_ZERO, CommandFlag.FUA | CommandFlag.NO_HOLE],
    Command.BLOCK_STATUS: [0, CommandFlag.REQ_ONE],
}


def _some_offset(chance: random.Random, size: int, places: Sequence[int]) -> int:
    near = chance.choice([*places, size, chance.randrange(size)])
    offset = near + chance.choice([0, 0, -1, 1, -512, 512, -4096, 4096, chance.randrange(-70000, 70000)])
    return chance.choice([2**64 - 1, 2**63]) if chance.random() < 0.02 else max(0, offset)


def some_request(chance: random.Random, size: int, places: Sequence[int]) -> Ask:
    """Make a request for an export of so many bytes. places: where it shall often be, besides."""
    command = chance.choice(_COMMANDS)
    flags = int(chance.choice(_GOOD.get(command, [0])) if chance.random() < 0.9 else 1 << chance.randrange(16))
    if flags == CommandFlag.PAYLOAD_LEN and command != Command.WRITE:
        flags = 0  # whether a payload follows depends on the form
    length = chance.choice([0, 1, 511, 512, 4096, 64 * KiB, MiB, 3 * MiB, chance.randrange(200000), 2**32 - 1])
    if command != Command.WRITE:
        return Ask(command, _some_offset(chance, size, places), length, flags, b"")
    length = min(length, 3 * MiB)
    data = bytes(length) if chance.random() < 0.2 else chance.randbytes(length)
    return Ask(command, _some_offset(chance, size, places), length, flags, data)


def some_apart(chance: random.Random, size: int, places: Sequence[int]) -> list[Ask]:
    """Make requests each of which has bytes of its own, so that their order says nothing; their edges share blocks."""
    slot = 64 * KiB - 100
    asked = []
    for start in range(0, size - slot, slot):
        ask = some_request(chance, size, places)
        length = min(ask.length, slot - 7)
        if ask.command != Command.BLOCK_STATUS:  # it sees more than its own bytes
            asked.append(ask._replace(offset=start + chance.randrange(7), length=length, data=ask.data[:length]))
    return asked


def seen(result: Result) -> tuple[object, ...]:
    """Return what an answer says, however it was cut."""
    extents = [(status, sum(length for length, _ in run)) for status, run in groupby(result.extents, lambda e: e[1])]
    return result.error, result.text, bytes(result.data), extents
