# SPDX-License-Identifier: Apache-2.0
"""Several connections of one ticket at once: what is told, limited, cancelled and stopped on them."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(daemon={"shutdown_timeout": 3}, control={"remove_timeout": 5})


@pytest.fixture
def images(own: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(own, tmp_path)


@contextmanager
def connected(daemon: Daemon, service: str, count: int, image: Image) -> Iterator[list[Connection]]:
    """Connect one after the other, each served before the next."""
    with ExitStack() as cleanup:
        connections = []
        for _ in range(count):
            connections.append(cleanup.enter_context(daemon.connect(service)))
            assert connections[-1].get(image.url, {"Range": "bytes=0-0"}).status == 206
        yield connections


def start_upload(connection: Connection, image: Image, offset: int, length: int = MiB) -> None:
    """Have a PUT under way, whose last byte does not come."""
    fields = {"Content-Length": str(length), "Content-Range": f"bytes {offset}-*/*"}
    connection.send(encode_request("PUT", image.url, fields, b"") + bytes(length - 1))


def test_status_tells_what_all_do(own: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(size=4 * MiB)
    with connected(own, service_name, 4, image) as connections:
        for number, connection in enumerate(connections):
            start_upload(connection, image, number * MiB)
        eventually(lambda: own.status(image.ticket)["active"], "the requests run")
        assert own.status(image.ticket)["connections"] == 4
        for connection in connections:
            connection.send(b"\0")
            assert connection.receive().status == 200
        eventually(lambda: own.status(image.ticket)["transferred"] == 4 * MiB, "all is counted once")
        eventually(lambda: not own.status(image.ticket)["active"], "nothing runs")


def test_removing_a_ticket_ends_its_requests_on_all(own: Daemon, images: MakeImage, service_name: str) -> None:
    image, other = images(size=4 * MiB), images()
    with connected(own, service_name, 4, image) as connections, own.connect(service_name) as bystander:
        for number, connection in enumerate(connections):
            start_upload(connection, image, number * MiB)
        eventually(lambda: own.status(image.ticket)["active"], "the requests run")
        own.remove(image.ticket)
        assert not own.has_open(image.path)
        for connection in connections:
            assert connection.status_or_end() in (403, None)
        assert bystander.get(other.url).body == other.content()


def test_idle_connections_let_go_of_a_removed_ticket(own: Daemon, images: MakeImage) -> None:
    image = images()
    with connected(own, "unix", 4, image) as connections:
        own.remove(image.ticket)
        assert not own.has_open(image.path)
        for connection in connections:
            assert connection.get(image.url).status == 403


def test_buffers_that_are_released_serve_those_who_wait(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(daemon={"buffer_memory": "1M"})
    image, content = make_image(own, tmp_path)(size=8 * MiB), pattern(8 * MiB, seed=1)

    def move(number: int) -> None:
        with own.connect("unix") as connection:
            for turn in range(20):
                offset = (number + turn) % 8 * MiB
                piece = content[offset : offset + MiB]
                assert connection.put_at(f"{image.url}?flush=n", offset, piece).status == 200

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(move, range(8)))
    assert image.content() == content


def test_tickets_come_and_go_while_others_transfer(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon()
    make = make_image(own, tmp_path)
    images = [make(size=4 * MiB) for _ in range(4)]

    def transfer(number: int) -> int:
        """Use tickets until they are gone; return how many requests were served."""
        served = 0
        for image in images[number % 2 :: 2]:
            with own.connect(("tls", "unix")[number % 3 > 0]) as connection:
                try:
                    while connection.put_at(f"{image.url}?flush=n", number % 4 * MiB, bytes(MiB)).status == 200:
                        served += 1
                        if connection.get(image.url, {"Range": "bytes=0-65535"}).status != 206:
                            break
                except (DisconnectedError, OSError):
                    pass  # cancelled in the middle of a body
        return served

    with ThreadPoolExecutor(8) as threads:
        served = [threads.submit(transfer, number) for number in range(8)]
        for image in images:
            eventually(partial(used, own, image), "it is used")
            for timeout in range(100, 120):
                own.extend(image.ticket, timeout)
                assert not own.status(image.ticket)["canceled"]
            own.remove(image.ticket)
            assert not own.has_open(image.path)
        assert sum(result.result(timeout=60) for result in served) > 0


def test_the_daemon_stops_while_connections_are_busy(own: Daemon, images: MakeImage) -> None:
    image = images(size=64 * MiB)

    def transfer(number: int, connection: Connection) -> None:
        try:
            while connection.put_at(f"{image.url}?flush=n", number * 8 * MiB, bytes(8 * MiB)).status == 200:
                pass
        except (DisconnectedError, OSError):
            pass

    with ExitStack() as cleanup:
        # All of them before the end begins: a slow machine would connect the last ones after it.
        connections = [cleanup.enter_context(own.connect(("tls", "unix")[number % 2])) for number in range(8)]
        threads = cleanup.enter_context(ThreadPoolExecutor(8))
        busy = [threads.submit(transfer, number, connection) for number, connection in enumerate(connections)]
        eventually(lambda: own.status(image.ticket)["transferred"] > 8 * MiB, "they transfer")
        own.send_signal(signal.SIGTERM)
        assert own.wait() == 0
        for transferring in busy:
            transferring.result(timeout=20)


def test_requests_that_do_not_end_are_cut(own: Daemon, images: MakeImage) -> None:
    image = images(size=4 * MiB)
    with connected(own, "unix", 4, image) as connections:
        for number, connection in enumerate(connections):
            start_upload(connection, image, number * MiB)
        eventually(lambda: own.status(image.ticket)["active"], "the requests run")
        own.send_signal(signal.SIGTERM)
        assert own.wait(timeout=8) == 0
        for connection in connections:
            assert connection.status_or_end() in (503, None)


def test_handshakes_that_do_not_end_do_not_delay_the_end(own: Daemon) -> None:
    with ExitStack() as cleanup:
        for _ in range(4):
            cleanup.enter_context(own.connect("unix"))
        silent = [cleanup.enter_context(_tcp(own)) for _ in range(4)]
        own.stop(timeout=2.5)
        assert all(connection.is_closed() for connection in silent)


def _tcp(daemon: Daemon) -> Connection:
    return Connection(socket.create_connection(("localhost", daemon.port), timeout=20))


def used(daemon: Daemon, image: Image) -> bool:
    return bool(daemon.status(image.ticket)["transferred"])
