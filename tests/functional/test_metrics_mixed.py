# SPDX-License-Identifier: Apache-2.0
"""Metrics are exact after a mixed load: both services of HTTP and NBD, lanes and Python, and errors among it."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command
from tests.frontends.nbd.client import Client
from tests.support.daemon import DECIDED_PROGRAM, PROGRAM, Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection
from tests.support.images import Image, KiB, MiB, make_image, pattern
from tests.support.metrics import Metrics
from tests.support.polling import eventually

#: Connections of each service, and requests of each connection.
CONNECTIONS, REQUESTS = 3, 60
#: Bytes of the image that are a connection's own.
PART = 4 * MiB
SIZE = 3 * CONNECTIONS * PART
#: One part of an answer. Of a larger one, what was read ahead is read again when the client pauses on a busy machine.
LARGEST = 256 * KiB
SERVICES = {"unix": "local", "tls": "remote"}


@dataclass
class Moved:
    """What clients have seen: requests, errors and bytes by service; bytes that storage must have moved."""

    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    storage: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Moved") -> None:
        for name, counter in vars(other).items():
            getattr(self, name).update(counter)


class Counting(Connection):
    """A connection that counts its bytes."""

    sent = received = 0

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        super().send(data)

    def _more(self) -> None:
        before = len(self._received)
        super()._more()
        self.received += len(self._received) - before


@dataclass(frozen=True)
class Load:
    """Clients of a daemon. image: written and read by all, each in its part. other: only read. missing: has no file."""

    daemon: Daemon
    image: Image
    other: Image
    missing: str
    nbd: Path

    def http(self, way: str, number: int) -> Moved:
        """Send requests of all kinds on a connection, and return what was moved."""
        choose, moved, service = random.Random(f"{way} {number}"), Moved(), SERVICES[way]
        start = (number + CONNECTIONS * list(SERVICES).index(way)) * PART
        connection = self._connect(way)
        for _ in range(REQUESTS):
            request = choose.choice((self._put, self._get, self._zero, self._ask, self._fail))
            answer = request(connection, choose, start, moved.storage)
            moved.requests[service] += 1
            moved.refused[service] += 400 <= answer.status < 500
            moved.failed[service] += answer.status >= 500
            if answer.closes:
                self._end(connection, service, moved)
                connection = self._connect(way)
        self._end(connection, service, moved)
        return moved

    async def nbd_client(self, number: int) -> Moved:
        """Send requests of NBD, and return what was moved."""
        choose, moved, start = random.Random(number), Moved(), (2 * CONNECTIONS + number) * PART
        client = await Client.connect(str(self.nbd))
        await client.go(self.image.ticket)
        for _ in range(REQUESTS):
            offset, length = _choose_range(choose, start)
            command = choose.choice((Command.READ, Command.WRITE, Command.WRITE_ZEROES, Command.FLUSH))
            wrong = choose.random() < 0.1 and command != Command.FLUSH
            data = pattern(length) if command == Command.WRITE else b""
            if command == Command.FLUSH:
                offset = length = 0
            result = await client.request(command, SIZE if wrong else offset, length, data=data)
            assert bool(result.error) == wrong
            moved.requests["nbd-local"] += 1
            moved.failed["nbd-local"] += wrong
            if not wrong and command != Command.FLUSH:
                moved.storage[{Command.READ: "read", Command.WRITE: "written"}.get(command, "zeroed")] += length
        await client.close()
        return moved

    def _connect(self, way: str) -> Counting:
        return Counting(self.daemon.connect(way).sock)

    @staticmethod
    def _end(connection: Counting, service: str, moved: Moved) -> None:
        connection.close()
        moved.sent[service] += connection.sent
        moved.received[service] += connection.received

    def _put(self, connection: Connection, choose: random.Random, start: int, storage: Counter[str]) -> Answer:
        offset, length = _choose_range(choose, start)
        url = self.image.url + choose.choice(("", "?flush=n"))
        answer = connection.put_at(url, offset, pattern(LARGEST)[:length])
        assert answer.status == 200
        storage["written"] += length
        return answer

    def _get(self, connection: Connection, choose: random.Random, start: int, storage: Counter[str]) -> Answer:
        offset, length = _choose_range(choose, start)
        answer = connection.get(self.image.url, {"Range": f"bytes={offset}-{offset + length - 1}"})
        assert (answer.status, len(answer.body)) == (206, length)
        storage["read"] += length
        return answer

    def _zero(self, connection: Connection, choose: random.Random, start: int, storage: Counter[str]) -> Answer:
        offset, length = _choose_range(choose, start)
        answer = connection.patch(self.image.url, {"op": "zero", "offset": offset, "size": length})
        assert answer.status == 200
        storage["zeroed"] += length
        return answer

    def _ask(self, connection: Connection, choose: random.Random, _: int, storage: Counter[str]) -> Answer:
        """Ask what reads nothing of the image, or all of another one."""
        what = choose.choice(("options", "flush", "extents", "checksum"))
        if what == "options":
            answer = connection.request("OPTIONS", self.image.url)
        elif what == "flush":
            answer = connection.patch(self.image.url, {"op": "flush"})
        else:
            answer = connection.get(f"{self.other.url}/{what}")
            storage["read"] += MiB if what == "checksum" else 0
        assert answer.status == 200
        return answer

    def _fail(self, connection: Connection, choose: random.Random, _: int, storage: Counter[str]) -> Answer:
        """Ask for what is refused, or fails."""
        what = choose.choice(("range", "ticket", "document", "method", "missing"))
        if what == "range":
            return connection.get(self.image.url, {"Range": f"bytes={SIZE}-"})
        if what == "ticket":
            return connection.put("/images/none", b"")
        if what == "document":
            return connection.request("PATCH", self.image.url, None, b"{")
        if what == "method":
            return connection.request("DELETE", self.image.url)
        storage["failed"] += 1
        return connection.get(f"/images/{self.missing}")


def _choose_range(choose: random.Random, start: int) -> tuple[int, int]:
    """Return offset and length inside a part, not aligned more often than not."""
    length = choose.choice((1, 512, 4096, 5000, 64 * KiB, LARGEST))
    return start + choose.choice((0, 512, 4096, 12_345, PART - length)), length


@pytest.fixture(params=[PROGRAM, DECIDED_PROGRAM])
def load(request: pytest.FixtureRequest, make_daemon: MakeDaemon, tmp_path: Path) -> Load:
    daemon = make_daemon(
        program=request.param,
        remote={"port": 0},
        nbd={"enable": True, "port": -1, "socket": tmp_path / "nbd"},
    )
    make = make_image(daemon, tmp_path)
    return Load(
        daemon, make(pattern(MiB) * (SIZE // MiB)), make(), daemon.add_ticket(tmp_path / "none", MiB), tmp_path / "nbd"
    )


async def test_mixed_load_is_counted_exactly(load: Load) -> None:
    moved = Moved()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2 * CONNECTIONS) as pool:
        work: list[Callable[[], Moved]] = [
            lambda way=way, number=number: load.http(way, number)  # type: ignore[misc]
            for way in SERVICES
            for number in range(CONNECTIONS)
        ]
        done = [loop.run_in_executor(pool, each) for each in work]
        nbd = [load.nbd_client(number) for number in range(CONNECTIONS)]
        for one in await asyncio.gather(*done, *nbd):
            moved.add(one)
    eventually(lambda: Metrics(load.daemon).sum("connections") == 1, "only the one that asks is there")
    metrics = Metrics(load.daemon)
    for service in (*SERVICES.values(), "nbd-local"):
        assert metrics.sum("requests_total", service=service) == moved.requests[service]
        assert metrics.sum("request_errors_total", service=service, fault="client") == moved.refused[service]
        assert metrics.sum("request_errors_total", service=service, fault="server") == moved.failed[service]
    for service in SERVICES.values():
        assert metrics.sum("received_bytes_total", service=service) == moved.sent[service]
        assert metrics.sum("sent_bytes_total", service=service) == moved.received[service]
    for what in ("read", "written", "zeroed"):
        assert metrics.sum(f"{what}_bytes_total") == moved.storage[what], what
    assert metrics.sum("storage_errors_total") == moved.storage["failed"]
    told = load.daemon.status(load.image.ticket)
    zeroed = {method: value for method, value in told["zeroed"].items() if value}
    assert sum(zeroed.values()) == moved.storage["zeroed"]
    for method, value in zeroed.items():
        assert metrics.sum("zeroed_bytes_total", method=method) == value
