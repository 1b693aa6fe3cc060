# SPDX-License-Identifier: Apache-2.0
"""Clients of one image: they write, zero, trim and flush on connections of all protocols until the daemon is dead."""

import contextlib
import random
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.soak.crash.calls import PowerCuts
from tests.soak.crash.sent import Content, Range, Sent
from tests.soak.crash.storage import Image
from tests.soak.lines import LINES, Line, Lost, connect
from tests.support.daemon import Daemon

#: Most requests of one client between two deaths, and of one connection.
REQUESTS, TURNS = 60, 12
#: Usual lengths of changes.
LENGTHS = (1, 7, 512, 4096, 4097, 12288, 65536, 100_001, 300_000)


@dataclass
class Upload:
    """One image with a ticket, and what was sent to it. cuts: None: the daemon does not write it itself."""

    image: Image
    size: int
    fields: dict[str, object]
    sent: Sent
    cuts: PowerCuts | None = None
    #: The ticket was installed, and the daemon keeps it.
    kept: bool = False

    @property
    def ticket(self) -> str:
        return str(self.fields["uuid"])

    @property
    def url(self) -> str:
        return f"/images/{self.ticket}"


@dataclass
class Tally:
    """What a campaign has done."""

    deaths: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        deaths, counts = sorted(self.deaths.items()), sorted(self.counts.items())
        return f"{sum(self.deaths.values())} deaths: {dict(deaths)}; {dict(counts)}"


class Client:
    """One client after the other. ticket_id: of another ticket than that of the upload."""

    def __init__(
        self, daemon: Daemon, upload: Upload, choose: random.Random, tally: Tally, ticket_id: str | None = None
    ) -> None:
        self._daemon = daemon
        self._upload = upload
        self._ticket = ticket_id or upload.ticket
        self._choose = choose
        self._tally = tally

    def run(self, asking: AbstractContextManager[None]) -> None:
        """Send until the daemon is dead, or for a while. asking: watches over it, and raises Lost."""
        with contextlib.suppress(Lost), asking:
            sent = 0
            while sent < REQUESTS:
                line = self.connect()
                try:
                    for _ in range(self._choose.randrange(1, TURNS)):
                        sent += 1
                        self._request(line)
                finally:
                    line.close()

    def connect(self) -> Line:
        """Open a connection of any kind."""
        kind, seed = self._choose.choice(LINES), self._choose.randrange(2**32)
        return connect(kind, self._daemon, self._ticket, seed)

    def _request(self, line: Line) -> None:
        what = self._choose.random()
        if what < 0.15:
            line.send(line.flush())
            self._count(line, "flush", line.answer())
            return
        start, end = self._place()
        trim = line.trim(start, end - start) if what > 0.92 else None
        if trim is not None and not self._upload.fields["sparse"]:
            line.send(trim)  # does nothing: the space is to stay
            self._count(line, "trim", line.answer())
        elif trim is not None:
            self._change(line, (start, end), Content.UNKNOWN, trim)
        elif what > 0.72:
            self._change(line, (start, end), Content.ZEROS, line.zero(start, end - start))
        else:
            data = self._choose.randbytes(end - start)
            self._change(line, (start, end), data, line.write(start, data))

    def _place(self) -> Range:
        """Return any range, or one that was changed or was told before, or the like."""
        length, size = self._choose.choice(LENGTHS), self._upload.size
        start = self._choose.randrange(size - length)
        sent = self._upload.sent
        known = [*sent.told, *((change.start, change.end) for change in sent.changes)]
        if known and self._choose.random() < 0.4:
            start, end = self._choose.choice(known)
            if self._choose.random() < 0.3 and end - start < max(LENGTHS):
                return start, end
            start = min(max(0, start + self._choose.choice((0, -1, 1, 4096, (end - start) // 2))), size - length)
        elif self._choose.random() < 0.6:
            start -= start % 4096
        return start, start + length

    def _change(self, line: Line, where: Range, content: bytes | Content, request: bytes) -> None:
        change = self._upload.sent.send(*where, content)
        line.send(request)
        good = line.answer()
        if good:
            self._upload.sent.answer(change)
        self._count(line, "change", good)

    def _count(self, line: Line, what: str, good: bool) -> None:
        self._tally.counts[f"{line.kind} {what}{'' if good else ' failed'}"] += 1
