# SPDX-License-Identifier: Apache-2.0
"""Limits on connections, and when idle and stuck ones are closed."""

import contextlib
import itertools
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crowd import crowd
from tests.support.daemon import Baseline, Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError, connect_tls, encode_request
from tests.support.images import MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually

IMPATIENT = {"inactivity_timeout": 1, "max_connections": 2}


@pytest.fixture(scope="module")
def impatient(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon that closes idle connections after a second, of all tests here."""
    with Daemon(certificates, {"daemon": IMPATIENT}) as daemon:
        yield daemon


@pytest.fixture
def fresh(make_daemon: MakeDaemon) -> Daemon:
    """The same, to which nobody has been connected."""
    return make_daemon(daemon=IMPATIENT)


@pytest.fixture
def images(impatient: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(impatient, tmp_path)


@pytest.fixture
def narrow(make_daemon: MakeDaemon) -> Daemon:
    """A daemon whose tickets may have eight connections."""
    return make_daemon(daemon={"max_connections": 2})


@pytest.fixture
def narrow_images(narrow: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(narrow, tmp_path)


def closed_after(connection: Connection, seconds: float) -> None:
    """Check that the server closes the connection, not much before and not long after this time."""
    started = time.monotonic()
    assert connection.is_closed(timeout=seconds + 8)
    assert time.monotonic() - started > seconds - 0.8


# Timeouts


def test_a_connection_that_says_nothing_is_closed(impatient: Daemon, service_name: str) -> None:
    with impatient.connect(service_name) as connection:
        closed_after(connection, 1)


def test_a_head_that_does_not_end_is_closed(impatient: Daemon, service_name: str) -> None:
    with impatient.connect(service_name) as connection:
        connection.send(b"GET /images/x HTTP/1.1\r\nHost:")
        assert connection.status_or_end() in (400, 408, None)
        assert connection.is_closed()


def test_a_head_of_one_byte_at_a_time_is_closed(impatient: Daemon, service_name: str) -> None:
    with impatient.connect(service_name) as connection:
        for byte in itertools.chain(b"GET / HTTP/1.1\r\n", itertools.islice(itertools.cycle(b"X: y\r\n"), 100)):
            if not connection.send_while_accepted(bytes([byte])) or not connection.is_silent(0.1):
                break
        else:
            pytest.fail("the connection is still open")


def test_a_connection_is_idle_for_as_long_as_its_ticket_allows(
    impatient: Daemon, images: MakeImage, service_name: str
) -> None:
    image = images(inactivity_timeout=3)
    with impatient.connect(service_name) as connection:
        assert connection.get(image.url).status == 200
        closed_after(connection, 3)


def test_a_ticket_may_allow_less_than_the_daemon(daemon: Daemon, new_image: MakeImage, service_name: str) -> None:
    image = new_image(inactivity_timeout=1)
    with daemon.connect(service_name) as connection:
        assert connection.get(image.url).status == 200
        closed_after(connection, 1)


def test_a_refused_ticket_gives_no_time(impatient: Daemon, service_name: str) -> None:
    with impatient.connect(service_name) as connection:
        assert connection.get("/nothing").status == 404
        closed_after(connection, 1)


def test_use_keeps_a_connection(impatient: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(inactivity_timeout=2)
    with impatient.connect(service_name) as connection:
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            assert connection.patch(image.url, {"op": "flush"}).status == 200
            assert connection.is_silent(0.3)


def test_a_body_that_stops_is_closed(impatient: Daemon, images: MakeImage, service_name: str) -> None:
    image = images()
    with impatient.connect(service_name) as connection:
        connection.send(encode_request("PUT", image.url, {"Content-Length": "1000000"}, bytes(1000)))
        with pytest.raises(DisconnectedError):
            raise AssertionError(connection.receive())
        eventually(lambda: not impatient.status(image.ticket)["active"], "the request has ended")


def test_a_body_of_ten_bytes_a_second_is_served(impatient: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(inactivity_timeout=2)
    content = pattern(40, seed=8)
    with impatient.connect(service_name) as connection:
        connection.send(encode_request("PUT", image.url, {"Content-Length": "40"}, b""))
        for at in range(40):
            connection.send(content[at : at + 1])
            assert connection.is_silent(0.1) or at == 39
        assert connection.receive().status == 200
    assert image.read(0, 40) == content


def test_a_body_of_one_byte_a_second_is_closed(impatient: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(inactivity_timeout=2)
    with impatient.connect(service_name) as connection:
        connection.send(encode_request("PUT", image.url, {"Content-Length": "1000000"}, b""))
        for _ in range(20):
            if not connection.send_while_accepted(b"x") or not connection.is_silent(1):
                break
        else:
            pytest.fail("a client that sends one byte a second is served for twenty seconds")
        eventually(lambda: not impatient.status(image.ticket)["active"], "the request has ended")


def test_a_client_that_does_not_read_is_closed(impatient: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(size=256 * MiB, ops=["read"])
    with impatient.connect(service_name) as connection:
        connection.send(encode_request("GET", image.url))
        eventually(lambda: impatient.status(image.ticket)["active"], "the request runs")
        eventually(lambda: not impatient.status(image.ticket)["active"], "the request has ended")
        eventually(lambda: impatient.status(image.ticket)["connections"] == 0, "the connection is gone")


def test_a_client_that_reads_slowly_is_served(impatient: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(pattern(8 * MiB), ops=["read"])
    with impatient.connect(service_name) as connection:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.send(encode_request("GET", image.url))
        received = bytearray()
        last = time.monotonic() + 3
        while time.monotonic() < last:  # 3 times the timeout
            received += connection.sock.recv(65536)
            assert not select.select([], [], [], 0.05)[0]
        while len(received) < 8 * MiB or not received.endswith(pattern(8 * MiB)[-10:]):
            data = connection.sock.recv(MiB)
            assert data
            received += data
    assert received.endswith(pattern(8 * MiB))


def test_tls_without_a_handshake_is_closed(impatient: Daemon) -> None:
    # By what comes before the ways to serve requests.
    with Connection(socket.create_connection(("localhost", impatient.port), timeout=20)) as connection:
        started = time.monotonic()
        assert connection.is_closed(timeout=15)
        assert 8 < time.monotonic() - started < 14


# Limits


def test_a_ticket_has_four_times_as_many_connections_as_it_tells(
    narrow: Daemon, narrow_images: MakeImage, service_name: str
) -> None:
    image = narrow_images()
    connections = [narrow.connect(service_name) for _ in range(9)]
    try:
        for connection in connections[:8]:
            assert connection.get(image.url).status == 200
        answer = connections[8].get(image.url)
        assert (answer.status, answer.code, answer.closes) == (503, "too_many_connections", True)
        assert answer.headers["Content-Type"] == "text/plain; charset=UTF-8"
        assert connections[8].is_closed()
        # Those that are in are not disturbed, and one that leaves makes room.
        assert connections[0].get(image.url).status == 200
        connections[1].close()
        eventually(lambda: narrow.status(image.ticket)["connections"] == 7, "the connection is gone")
        with narrow.connect(service_name) as another:
            assert another.get(image.url).status == 200
    finally:
        for connection in connections:
            connection.close()


def test_the_limit_is_for_one_ticket(narrow: Daemon, narrow_images: MakeImage) -> None:
    first, second = narrow_images(), narrow_images()
    connections = [narrow.connect("unix") for _ in range(8)]
    try:
        for connection in connections:
            assert connection.get(first.url).status == 200
        with narrow.connect("unix") as another:
            assert another.get(second.url).status == 200
    finally:
        for connection in connections:
            connection.close()


def test_a_connection_counts_for_the_ticket_that_it_has_used_last(narrow: Daemon, narrow_images: MakeImage) -> None:
    first, second = narrow_images(), narrow_images()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(narrow.connect("unix")) for _ in range(9)]
        for connection in connections[:8]:
            assert [connection.get(image.url).status for image in (first, second) * 2] == [200] * 4
        assert [narrow.status(image.ticket)["connections"] for image in (first, second)] == [0, 8]
        assert [connections[8].get(image.url).status for image in (first, second)] == [200, 503]


@pytest.mark.every_kind
def test_one_connection_may_use_many_tickets(daemon: Daemon, new_image: MakeImage, service_name: str) -> None:
    images = [new_image(pattern(100, seed=seed)) for seed in range(5)]
    with daemon.connect(service_name) as connection:
        for image in images * 2:
            assert connection.get(image.url).body == image.content()
        assert daemon.status(images[-1].ticket)["connections"] == 1
    eventually(
        lambda: all(daemon.status(image.ticket)["connections"] == 0 for image in images), "the connection is gone"
    )


def test_a_thousand_silent_connections_disturb_nobody(fresh: Daemon, tmp_path: Path) -> None:
    image = make_image(fresh, tmp_path)(pattern(MiB))
    with fresh.connect("unix") as connection:
        assert connection.get(image.url).status == 200
    baseline = Baseline(fresh)
    memory = fresh.resident_memory()
    silent = []
    try:
        for _ in range(1000):
            silent.append(socket.create_connection(("localhost", fresh.port), timeout=20))
        # With all of them open, somebody else works; TLS for those that get in, at once.
        with fresh.connect("unix") as connection:
            for _ in range(20):
                assert connection.get(image.url).status == 200
        assert fresh.resident_memory() - memory < 200 * MiB
    finally:
        for sock in silent:
            sock.close()
    fresh.remove(image.ticket)
    baseline.check()


def test_silent_connections_are_reaped(fresh: Daemon) -> None:
    baseline = Baseline(fresh)
    silent = [fresh.connect("unix") for _ in range(300)]
    try:
        baseline.check()
        assert all(connection.is_closed() for connection in silent)
    finally:
        for connection in silent:
            connection.close()


# Connections that have shown no ticket


@pytest.fixture
def small(make_daemon: MakeDaemon) -> Daemon:
    """A daemon for 40 connections."""
    nbd = {"enable": True, "host": "localhost", "port": 0, "tls": "off", "max_connections": 40}
    return make_daemon(daemon={"max_total_connections": 40}, nbd=nbd)


@contextlib.contextmanager
def asking(daemon: Daemon, count: int) -> Iterator[list[Connection]]:
    """Open TLS connections that ask what needs no ticket."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(daemon.connect("tls")) for _ in range(count)]
        for connection in connections[-10:]:
            assert connection.get("/info/").status == 200
        yield connections


def test_connections_without_a_ticket_keep_nobody_out(small: Daemon, tmp_path: Path, service_name: str) -> None:
    image = make_image(small, tmp_path)()
    with small.connect(service_name) as first:
        assert first.get(image.url).status == 200
        with asking(small, 60) as strangers, small.connect(service_name) as second:
            assert second.get(image.url).status == 200
            assert strangers[0].is_closed()
            assert strangers[-1].get("/info/").status == 200
            assert first.get(image.url).status == 200


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["silent", "in their handshake"])
def test_connections_without_a_handshake_keep_nobody_out(small: Daemon, tmp_path: Path, said: bytes) -> None:
    image = make_image(small, tmp_path)()
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(2100):
            silent.append(stack.enter_context(socket.create_connection(("localhost", small.port), timeout=20)))
            silent[-1].sendall(said)
        with small.connect("tls") as new:
            assert new.get(image.url).status == 200
        assert silent[0].recv(1) == b""


def test_local_clients_are_not_closed_for_others(small: Daemon) -> None:
    with small.connect("unix") as local, asking(small, 60):
        assert local.get("/info/").status == 200


def test_connection_whose_ticket_was_deleted_goes_for_a_new_one(small: Daemon, tmp_path: Path) -> None:
    images = make_image(small, tmp_path)
    doomed, other = images(), images()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(small.connect("tls")) for _ in range(40)]
        for number, connection in enumerate(connections):
            assert connection.get((doomed if number < 10 else other).url).status == 200
        with small.connect("tls") as refused:
            assert refused.receive().status == 503
        small.remove(doomed.ticket)

        def is_served() -> bool:
            """Ask; the tickets are looked at once a second."""
            with small.connect("tls") as new:
                return new.status_or_end() is None if not new.is_silent(0.2) else new.get(other.url).status == 200

        eventually(is_served, "a new client has the place of one whose ticket is gone")
        assert connections[0].is_closed()
        assert connections[-1].get(other.url).status == 200


def test_a_ticket_with_too_many_connections_keeps_no_more_places(small: Daemon, tmp_path: Path) -> None:
    images = make_image(small, tmp_path)
    mine, others = images(), images()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(small.connect("tls")) for _ in range(39)]
        statuses = [connection.get(mine.url).status for connection in connections]
        assert statuses == [200] * 32 + [503] * 7
        for _ in range(8):
            assert stack.enter_context(small.connect("tls")).get(others.url).status == 200


def nbd_port(daemon: Daemon) -> int:
    match = daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert match is not None
    return int(match[1])


def negotiate(port: int, ticket: str) -> bool:
    """Tell whether an NBD client is let in."""
    name = ticket.encode()
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("localhost", port), timeout=20) as sock,
        sock.makefile("rb") as received,
    ):
        if received.read(18) != b"NBDMAGICIHAVEOPT\0\3":
            return False
        sock.sendall(b"\0\0\0\3IHAVEOPT" + struct.pack(">LL", 1, len(name)) + name)
        return len(received.read(10)) == 10
    return False


def test_nbd_connections_without_a_ticket_keep_nobody_out(small: Daemon, tmp_path: Path) -> None:
    image = make_image(small, tmp_path)()
    port = nbd_port(small)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(("localhost", port), timeout=20))
        assert negotiate(port, image.ticket)


@pytest.mark.parametrize("addresses", [1, 500])
@pytest.mark.parametrize(("kind", "connections"), [("silent", 2200), ("hello", 2200), ("info", 400), ("nbd", 400)])
def test_clients_with_a_ticket_get_through_a_crowd(
    make_daemon: MakeDaemon, tmp_path: Path, kind: str, connections: int, addresses: int
) -> None:
    nbd = {"enable": True, "host": "localhost", "port": 0, "tls": "off"}
    daemon = make_daemon(daemon={"max_total_connections": 256}, nbd=nbd, log={"level": "info"})
    image = make_image(daemon, tmp_path)(size=4096)
    memory = daemon.resident_memory()
    port = nbd_port(daemon) if kind == "nbd" else daemon.port
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(daemon.connect("tls"))
        assert old.get(image.url).status == 200
        stack.enter_context(crowd(port, kind, addresses=addresses, connections=connections))

        def is_served(service: str) -> bool:
            """Ask; a client that was too slow among so many may try again."""
            with contextlib.suppress(DisconnectedError, ConnectionError, ssl.SSLError), daemon.connect(service) as new:
                return new.get(image.url).status == 200
            return False

        for _ in range(10):
            eventually(lambda: is_served("tls"), "a client gets through", timeout=10)
            eventually(lambda: negotiate(nbd_port(daemon), image.ticket), "an NBD client gets through", timeout=10)
            assert is_served("unix")
            started = time.monotonic()
            assert daemon.control("GET", "/tickets/").status == 200
            assert time.monotonic() - started < 2
        assert old.get(image.url).status == 200
        assert daemon.resident_memory() - memory < 150 * MiB


# Addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_ip_versions_are_served(daemon: Daemon, new_image: MakeImage, host: str) -> None:
    context = ssl.create_default_context(cafile=str(daemon.cafile))
    image = new_image()
    with Connection(connect_tls(host, daemon.port, context)) as connection:
        assert connection.get(image.url).status == 200


def test_it_can_listen_on_one_address_only(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(remote={"host": "127.0.0.1"})
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=10):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("::1", daemon.port), timeout=10)
