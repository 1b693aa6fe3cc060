# SPDX-License-Identifier: Apache-2.0
"""The conversation of backup products: tickets as engines make them for these, requests as they send them.

What must not happen: 400 for a field that is unusual and legal, a connection that is closed between two ranges, a
ticket that expires while ranges are read, a removal that waits for connections which do nothing.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Certificates, Daemon
from tests.support.http_client import Answer, Connection, encode_request
from tests.support.images import KiB, MiB, pattern
from tests.support.nbdservers import NbdServer, make_qcow2, qemu_nbd

SIZE = 64 * MiB
MakeTicket = Callable[..., str]

SIZES = [256 * KiB, 4 * MiB]
CONNECTIONS = [1, 4, 8]
#: Fields that clients, their frameworks and proxies add, and that change nothing.
FIELDS: list[dict[str, str]] = [
    {"User-Agent": "", "Accept": "*/*", "Accept-Encoding": "gzip, deflate, br", "Accept-Language": "de-DE,en;q=0.5"},
    {"Connection": "keep-alive", "Keep-Alive": "timeout=600, max=1000"},
    {"Connection": "Keep-Alive, TE", "TE": "trailers"},
    {"Authorization": "Bearer 0123456789abcdef"},
    {"Authorization": "Basic YWRtaW46c2VjcmV0", "Cookie": "a=b; locale=en_US"},
    {"Cache-Control": "no-cache", "Pragma": "no-cache", "If-None-Match": '"none"'},
    {"Content-Type": "application/octet-stream"},
    {
        "Host": "host.example.org:54322",
        "Via": "1.1 proxy",
        "X-Forwarded-For": "192.0.2.1",
        "Forwarded": "for=192.0.2.1",
    },
    {"Request-Id": "|7e4f.1.", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Empty": ""},
    {"Version": "4", "Prefer": "persistent-auth", "Session-TTL": "3600", "Correlation-Id": "17"},
    {"X-Long": "x" * 8000, "X-Bytes": "\u00e9".encode().decode("latin-1")},
]


@pytest.fixture(scope="module")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon as it comes."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk that was backed up, and has changed since: data, and data that has become zeros."""
    disk = make_qcow2(tmp_path_factory.mktemp("products") / "disk.qcow2", SIZE)
    commands = ["write -q -P 1 0 48M", None, "write -q -P 2 1M 9M", "write -q -z 20M 3M", "write -q -P 3 63M 1M"]
    for command in commands:
        if command is None:
            subprocess.check_call(["qemu-img", "bitmap", "--add", "-f", "qcow2", str(disk), "ckp-1"])
        else:
            subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", command, str(disk)])
    return disk


@pytest.fixture(scope="module")
def content(disk: Path) -> bytes:
    raw = disk.with_suffix(".raw")
    subprocess.check_call(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(disk), str(raw)])
    return raw.read_bytes()


@pytest.fixture(scope="module")
def server(disk: Path) -> Iterator[NbdServer]:
    with qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=ckp-1", "--allocation-depth") as server:
        yield server


@pytest.fixture
def ticket(daemon: Daemon) -> Iterator[MakeTicket]:
    """Install a ticket as an engine does for a backup, and return the path of its image."""
    made = []

    def make(server: NbdServer, **fields: Any) -> str:
        asked = {"url": server.url, "ops": ["read"], "dirty": True, "sparse": False, "inactivity_timeout": 3600}
        made.append(daemon.add_ticket("", SIZE, **asked | {"transfer_id": "backup"} | fields))
        return f"/images/{made[-1]}"

    yield make
    for ticket_id in made:
        daemon.control("DELETE", f"/tickets/{ticket_id}")


@pytest.fixture
def url(ticket: MakeTicket, server: NbdServer) -> str:
    return ticket(server)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Connection]:
    with daemon.connect("tls") as client:
        yield client


def ranged(client: Connection, url: str, start: int, length: int, fields: Mapping[str, str] | None = None) -> bytes:
    answer = client.get(url, {"Range": f"bytes={start}-{start + length - 1}", **(fields or {})})
    assert (answer.status, answer.closes) == (206, False)
    assert answer.headers["Content-Range"] == f"bytes {start}-{start + length - 1}/{SIZE}"
    return answer.body


def pieces(extents: list[dict[str, Any]], size: int) -> list[tuple[int, int]]:
    """Return the ranges of at most `size` bytes in which the extents are read."""
    return [
        (at, min(size, extent["start"] + extent["length"] - at))
        for extent in extents
        for at in range(extent["start"], extent["start"] + extent["length"], size)
    ]


def in_parallel(daemon: Daemon, count: int, work: list[Any], do: Any) -> None:
    """Do each piece of work by one of the connections, which stay open."""
    failed: list[BaseException] = []
    left, lock = list(work), threading.Lock()

    def serve() -> None:
        try:
            with daemon.connect("tls") as client:
                while True:
                    with lock:
                        if not left or failed:
                            return
                        one = left.pop()
                    do(client, *one)
        except BaseException as e:  # noqa: BLE001 - it is raised by the test's thread
            failed.append(e)

    threads = [threading.Thread(target=serve) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# Backup


def test_second_connection_asks_for_extents_before_the_first_one_has_said_anything(daemon: Daemon, url: str) -> None:
    with daemon.connect("tls") as first, daemon.connect("tls") as second:
        extents = second.get(f"{url}/extents?context=dirty")
        assert (extents.status, extents.closes) == (200, False)
        told = first.request("OPTIONS", url)
        assert told.status == 200
        assert {"extents", "nbd"} <= set(told.json()["features"])
        assert ranged(first, url, 0, 64 * KiB) == ranged(second, url, 0, 64 * KiB)


def test_extents_are_one_list_of_the_whole_disk(client: Connection, url: str) -> None:
    for query in ("", "?context=zero", "?context=dirty"):
        extents = client.get(f"{url}/extents{query}").json()
        ends = [0, *(extent["start"] + extent["length"] for extent in extents)]
        assert [extent["start"] for extent in extents] == ends[:-1]
        assert ends[-1] == SIZE


def test_what_became_zeros_is_dirty_and_zero(client: Connection, url: str) -> None:
    extents = client.get(f"{url}/extents?context=dirty").json()
    changed = [(e["start"] // MiB, e["length"] // MiB, e["zero"]) for e in extents if e["dirty"]]
    assert changed == [(1, 9, False), (20, 3, True), (63, 1, False)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("connections", CONNECTIONS)
def test_full_backup_in_ranges(
    daemon: Daemon, client: Connection, url: str, content: bytes, connections: int, size: int
) -> None:
    copy = bytearray(SIZE)

    def copied(client: Connection, start: int, length: int) -> None:
        copy[start : start + length] = ranged(client, url, start, length)

    extents = client.get(f"{url}/extents").json()
    data = [extent for extent in extents if not extent["zero"]]
    in_parallel(daemon, connections, pieces(data, size), copied)
    assert copy == content


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_incremental_backup_in_ranges(
    daemon: Daemon, client: Connection, url: str, content: bytes, connections: int
) -> None:
    copy = bytearray(b"\1" * (48 * MiB) + bytes(SIZE - 48 * MiB))  # the full backup

    def copied(client: Connection, start: int, length: int) -> None:
        copy[start : start + length] = ranged(client, url, start, length)

    changed = [extent for extent in client.get(f"{url}/extents?context=dirty").json() if extent["dirty"]]
    for extent in changed:
        if extent["zero"]:
            copy[extent["start"] : extent["start"] + extent["length"]] = bytes(extent["length"])
    data = [extent for extent in changed if not extent["zero"]]
    in_parallel(daemon, connections, pieces(data, 256 * KiB), copied)
    assert copy == content


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: next(iter(fields)))
def test_unusual_fields_are_no_error(client: Connection, url: str, content: bytes, fields: dict[str, str]) -> None:
    for method, target, status in (("OPTIONS", url, 200), ("GET", f"{url}/extents?context=dirty", 200)):
        answer = client.request(method, target, fields)
        assert (answer.status, answer.closes) == (status, False)
    assert ranged(client, url, 1000, 64 * KiB, fields) == content[1000 : 1000 + 64 * KiB]


@pytest.mark.parametrize(
    "line", [b"range:bytes=0-9", b"RANGE:\tbytes=0-9\t", b"Range: Bytes=0-9", b"Range:  bytes=0-9 "]
)
def test_range_in_any_spelling_that_is_legal(client: Connection, url: str, content: bytes, line: bytes) -> None:
    client.send(b"GET " + url.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n")
    answer = client.receive()
    assert (answer.status, answer.body) == (206, content[:10])


def test_ticket_does_not_expire_while_ranges_are_read(daemon: Daemon, ticket: MakeTicket, server: NbdServer) -> None:
    url = ticket(server, timeout=4)
    end = daemon.status(url.removeprefix("/images/"))["expires"] + 2  # of the ticket, without a request
    with daemon.connect("tls") as client:
        while time.monotonic() < end:
            ranged(client, url, 0, 256 * KiB)


def test_connections_that_do_nothing_do_not_hold_up_the_removal(daemon: Daemon, url: str) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect("tls")) for _ in range(8)]
        for client in clients:
            ranged(client, url, 0, 256 * KiB)
        assert daemon.control("DELETE", f"/tickets/{url.removeprefix('/images/')}").status == 204
        for client in clients:
            assert client.get(url).status == 403


# Restore


def expecting(client: Connection, url: str, fields: Mapping[str, str], body: bytes) -> Answer:
    """Send a body when the server wants it."""
    head = {"Content-Length": str(len(body)), "Expect": "100-continue", **fields}
    client.send(encode_request("PUT", url, head))
    assert client.receive(to="PUT").status == 100
    client.send(body)
    return client.receive(to="PUT")


@pytest.mark.parametrize("total", ["*", str(SIZE)])
@pytest.mark.parametrize("connections", CONNECTIONS)
def test_restore_in_ranges(daemon: Daemon, ticket: MakeTicket, tmp_path: Path, connections: int, total: str) -> None:
    target, content = make_qcow2(tmp_path / "disk.qcow2", SIZE), pattern(16 * MiB) + bytes(4 * MiB)
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", f"write -q -P 7 0 {len(content)}", str(target)])
    with qemu_nbd(target, "qcow2") as server:
        url = ticket(server, ops=["write"], dirty=False, sparse=True)

        def restored(client: Connection, start: int, length: int) -> None:
            where = {"Content-Range": f"bytes {start}-{start + length - 1}/{total}"}
            answer = expecting(client, f"{url}?flush=n", where | FIELDS[0], content[start : start + length])
            assert (answer.status, answer.closes) == (200, False)

        in_parallel(daemon, connections, pieces([{"start": 0, "length": 16 * MiB}], 4 * MiB), restored)
        with daemon.connect("tls") as client:
            assert client.patch(url, {"op": "zero", "offset": 16 * MiB, "size": 4 * MiB, "flush": False}).status == 200
            assert client.patch(url, {"op": "flush"}).status == 200
            assert client.get(url).body[: len(content)] == content
        daemon.remove(url.removeprefix("/images/"))
        server.stop()
    assert b"No errors" in subprocess.check_output(["qemu-img", "check", str(target)])


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: next(iter(fields)))
def test_unusual_fields_of_a_change_are_no_error(
    daemon: Daemon, client: Connection, tmp_path: Path, fields: dict[str, str]
) -> None:
    path = tmp_path / "disk"
    path.write_bytes(bytes(MiB))
    url = f"/images/{daemon.add_ticket(path, MiB, inactivity_timeout=3600)}"
    document = {**fields, "Content-Type": "application/json; charset=utf-8"}
    for method, more, body in (
        ("PUT", {"Content-Range": "bytes 4096-8191/*"}, b"x" * 4096),
        ("PATCH", document, b'{"op": "zero", "size": 4096, "offset": 0, "flush": false}'),
        ("PATCH", document, b'{"op":"flush"}'),
    ):
        answer = client.request(method, url, fields | more, body)
        assert (answer.status, answer.closes) == (200, False)
    assert path.read_bytes() == bytes(4096) + b"x" * 4096 + bytes(MiB - 8192)


# What servers of engines allow, and docs/engines.md says that this one does not


@pytest.mark.parametrize(
    ("method", "place", "fields", "body", "status"),
    [
        ("GET", "unknown", {}, None, 403),
        ("POST", "/flush", {}, b"", 405),
        ("PATCH", "", {"Content-Type": "application/octet-stream", "Range": "bytes=0-4"}, b"bytes", 400),
        ("PATCH", "", {"Content-Type": "application/json"}, b'{"op": "zero", "offset": 1048000, "size": 4096}', 416),
        ("GET", "/extents?context=dirty", {}, None, 404),
    ],
    ids=str,
)
def test_what_is_refused(
    daemon: Daemon, client: Connection, tmp_path: Path, method: str, place: str, fields: dict[str, str],
    body: bytes | None, status: int,
) -> None:  # fmt: skip
    path = tmp_path / "disk"
    path.write_bytes(bytes(MiB))
    url = f"/images/{daemon.add_ticket(path, MiB)}"
    assert (
        client.request(method, f"/images/{place}" if place == "unknown" else url + place, fields, body).status == status
    )
    assert path.read_bytes() == bytes(MiB)
