# SPDX-License-Identifier: Apache-2.0
"""Servers to compare. Each has its own images and tickets, which are equal on all servers."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ioutil.disk import first_difference
from tests.support.daemon import PROGRAM, Certificates, Daemon, Section
from tests.support.images import Image, KiB, MiB, make_image, pattern
from tests.support.places import Place, Setting, Trait
from tests.support.polling import eventually

#: The content of the image that most requests use: longer than a piece, of odd length, with a hole.
SIZE = 5 * MiB + 777
SMALL = 200 * KiB + 100


def _id(number: int) -> str:
    return f"d1ffe7e2-0000-4000-8000-{number:012x}"


MAIN, READ_ONLY, SPARSE, LARGER, SMALLER, EMPTY, EXPIRED, FORBIDDEN, MISSING, UNKNOWN = map(_id, range(10))

#: The fields of tickets, and the sizes and data of their images.
TICKETS: Mapping[str, Mapping[str, Any]] = {
    MAIN: {"size": SIZE, "pieces": {0: pattern(2 * MiB), SIZE - MiB: pattern(MiB, 1)}, "filename": "Größe 1.raw"},
    READ_ONLY: {"size": SMALL, "pieces": {512: pattern(100 * KiB, 2)}, "ops": ["read"]},
    SPARSE: {"size": 2 * MiB, "pieces": {0: pattern(MiB, 3)}, "sparse": True},
    LARGER: {"size": SMALL, "pieces": {0: pattern(SMALL, 4)}, "ticket_size": 3 * MiB + 5, "sparse": True},
    SMALLER: {"size": SMALL, "pieces": {0: pattern(SMALL, 5)}, "ticket_size": SMALL - 5000, "ops": ["read", "write"]},
}
#: Tickets that do not depend on the kind of storage.
REFUSED: Mapping[str, Mapping[str, Any]] = {
    EMPTY: {"size": 0},
    EXPIRED: {"size": SMALL, "timeout": 0},
    FORBIDDEN: {"size": SMALL, "ops": []},
}
#: Keys of a ticket's status that should be equal on both servers.
_STATUS = ("size", "ops", "active", "canceled", "connections", "sparse", "dirty", "transferred", "filename")


@dataclass
class Server:
    """A running daemon, with a name for messages. If it `has_lane`, C serves its plain requests."""

    name: str
    daemon: Daemon
    has_lane: bool

    @property
    def nbd_port(self) -> int:
        match = self.daemon.log.find(r"service=nbd address=.*port=(\d+)")
        assert match is not None
        return int(match[1])

    @property
    def nbd_socket(self) -> str:
        match = self.daemon.log.find(r"service=nbd-local address=(\S+)")
        assert match is not None
        return match[1]


@dataclass
class Stage:
    """The images of one server."""

    server: Server
    images: dict[str, Image] = field(default_factory=dict)

    def status(self, ticket: str) -> dict[str, Any]:
        """Return the status of a ticket when no client is connected any more."""
        daemon = self.server.daemon
        eventually(lambda: daemon.status(ticket)["connections"] == 0, "the connections are gone")
        status = daemon.status(ticket)
        return {key: status.get(key) for key in _STATUS}


class Scene:
    """The same images on several servers."""

    def __init__(
        self, servers: Sequence[Server], directory: Path, kind: type[Place], other: Callable[[], Daemon]
    ) -> None:
        self.servers = servers
        self.kind = kind
        self._directory = directory
        self._other = other
        self._stages: list[Stage] = []
        self._cleanup = ExitStack()

    def close(self) -> None:
        """Remove the images and their tickets."""
        self._cleanup.close()

    def renew(self) -> None:
        """Restore the images."""
        self._cleanup.close()
        self._stages = [self._make(number, server) for number, server in enumerate(self.servers)]

    def _make(self, number: int, server: Server) -> Stage:
        directory = self._directory / f"{number}"
        directory.mkdir(exist_ok=True)
        daemon, stage, cleanup = server.daemon, Stage(server), ExitStack()
        self._cleanup.push(cleanup)
        setting = Setting(daemon, self._other, cleanup)
        make = make_image(daemon, directory, lambda raw, fields: self.kind.make(raw, fields, setting))
        tickets = {**TICKETS, **REFUSED} if self.kind is Place else TICKETS
        for ticket, fields in tickets.items():
            stage.images[ticket] = make(uuid=ticket, **fields)
            cleanup.callback(daemon.control, "DELETE", f"/tickets/{ticket}")
        daemon.add_ticket("/does/not/exist", SMALL, uuid=MISSING)
        cleanup.callback(daemon.control, "DELETE", f"/tickets/{MISSING}")
        return stage

    @property
    def looks_often(self) -> bool:
        """Return whether looking at the images takes hardly any time."""
        return Trait.RAW_FILE in self.kind.traits

    def difference(self) -> str:
        """Return where the images differ, or "" if they are equal."""
        first, *others = self._stages
        for ticket, image in first.images.items():
            expected = _content(image)
            for stage in others:
                if found := first_difference(_content(stage.images[ticket]), expected):
                    return f"image {ticket} of {stage.server.name}, not of {first.server.name}: {found}"
        return ""

    def status_difference(self) -> str:
        """Return how the tickets' status differs, or "" if it does not."""
        first, *others = self._stages
        for ticket in first.images:
            expected = first.status(ticket)
            for stage in others:
                if (got := stage.status(ticket)) != expected:
                    return f"ticket {ticket}: {first.server.name} {expected}, {stage.server.name} {got}"
        return ""


def _content(image: Image) -> bytes:
    """Return all of an image, with the bytes behind its end that a larger ticket may write."""
    return image.place._look()


def start(
    certificates: Certificates, checkout: Path | None = None, program: str = PROGRAM, **config: Section
) -> Daemon:
    """Return a daemon that is not started yet. With `checkout`, it is that of another work tree."""
    every: dict[str, Section] = {
        "nbd": {"enable": True, "host": "localhost", "port": 0, "socket": f"/tmp/nbd-{uuid.uuid4().hex[:8]}"},
        "backend_http": {"ca_file": certificates.cafile},
    }
    return Daemon(certificates, {**every, **config}, program=program, checkout=checkout)
