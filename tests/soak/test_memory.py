# SPDX-License-Identifier: Apache-2.0
"""Campaigns of minutes: memory stays what it is, under load and over time. They run with IMAGEIO_TEST_LONG=1."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Baseline, Daemon, MakeDaemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Managed, Place, Qcow2Served

pytestmark = [
    pytest.mark.skipif(not os.environ.get("IMAGEIO_TEST_LONG"), reason="takes minutes: IMAGEIO_TEST_LONG=1"),
    pytest.mark.timeout(3600),
]

CONNECTIONS = 64
BUFFER_MEMORY = 128 * MiB

#: In files, and such as an NBD server has: that one has a process, and memory, of its own.
anywhere = pytest.mark.parametrize("image_kind", [Place, Qcow2Served, Managed], ids=lambda kind: kind.kind)


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(daemon={"buffer_memory": BUFFER_MEMORY, "max_connections": CONNECTIONS}, log={"level": "info"})


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run work(0) … work(count - 1) at the same time; raises what one of them raised."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as e:  # noqa: BLE001 - raised again below
            failures.append(e)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@anywhere
@pytest.mark.parametrize("size", [16 * MiB, 256 * 1024])
def test_uploads_on_64_connections_stay_within_the_budget(
    daemon: Daemon, new_image: MakeImage, service_name: str, size: int
) -> None:
    image = new_image(size=CONNECTIONS * size)
    body = pattern(size)
    rounds = 4 if size >= MiB else 40

    def upload(number: int) -> None:
        with daemon.connect(service_name, timeout=600) as connection:
            for _ in range(rounds):
                assert connection.put_at(f"{image.url}?flush=n", number * size, body).status == 200

    in_threads(upload, CONNECTIONS)
    assert daemon.peak_memory() < BUFFER_MEMORY + 100 * MiB
    assert image.read(0, size) == body


@anywhere
def test_downloads_on_64_connections_stay_within_the_budget(
    daemon: Daemon, new_image: MakeImage, service_name: str
) -> None:
    image = new_image(pattern(64 * MiB))

    def download(_: int) -> None:
        with daemon.connect(service_name, timeout=600) as connection:
            assert len(connection.get(image.url).body) == 64 * MiB

    in_threads(download, CONNECTIONS)
    assert daemon.peak_memory() < BUFFER_MEMORY + 100 * MiB


@anywhere
def test_64_downloads_that_nobody_reads_stay_within_the_budget(
    daemon: Daemon, new_image: MakeImage, service_name: str
) -> None:
    image = new_image(size=1024 * MiB)
    connections = [daemon.connect(service_name) for _ in range(CONNECTIONS)]
    try:
        for connection in connections:
            connection.send(encode_request("GET", image.url))
        # Those that hold the buffers are closed at last, and the others get them: everybody is answered.
        assert not connections[-1].is_silent(timeout=200)
        assert daemon.peak_memory() < BUFFER_MEMORY + 100 * MiB
    finally:
        for connection in connections:
            connection.close()


def requests(image: Image) -> Iterator[tuple[bytes, str]]:
    """Return small requests of all kinds without end."""
    offset = 0
    while True:
        offset = (offset + 4096) % MiB
        yield encode_request("PUT", f"{image.url}?flush=n", {"Content-Range": f"bytes {offset}-*/*"}, bytes(512)), "PUT"
        yield encode_request("PATCH", image.url, None, b'{"op": "zero", "offset": %d, "size": 4096}' % offset), "PATCH"
        yield encode_request("GET", image.url, {"Range": f"bytes={offset}-{offset + 99}"}), "GET"
        yield encode_request("OPTIONS", image.url), "OPTIONS"
        yield encode_request("GET", image.url, {"Range": "bytes=x"}), "GET"


def test_memory_does_not_grow_over_200_000_requests(daemon: Daemon, new_image: MakeImage, service_name: str) -> None:
    image, memory = new_image(), 0

    def on_new_connection(_: int) -> None:
        with daemon.connect(service_name, timeout=60) as connection:
            small_requests(connection, image, 500)

    for done in range(2_000, 202_000, 2_000):
        in_threads(on_new_connection, 4)
        if done == 20_000:
            memory = daemon.resident_memory()
    assert daemon.resident_memory() < memory * 1.05


def small_requests(connection: Connection, image: Image, count: int) -> None:
    source = requests(image)
    for _ in range(0, count, 20):
        batch = [next(source) for _ in range(20)]
        connection.send(b"".join(request for request, _ in batch))
        for _, method in batch:
            assert connection.receive(to=method).status in (200, 206, 416)


def test_memory_does_not_grow_with_tickets_and_connections(daemon: Daemon, tmp_path: Path, service_name: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB))
    memory, baseline = 0, None
    for number in range(3000):
        ticket_id = daemon.add_ticket(path, MiB)
        with daemon.connect(service_name) as connection:
            assert connection.put(f"/images/{ticket_id}", bytes(4096)).status == 200
            assert len(connection.get(f"/images/{ticket_id}").body) == MiB
        daemon.remove(ticket_id)
        if number == 300:
            memory, baseline = daemon.resident_memory(), Baseline(daemon)
    assert daemon.resident_memory() < memory * 1.05
    assert baseline is not None
    baseline.check()


def test_an_image_of_many_extents_costs_little_memory(daemon: Daemon, new_image: MakeImage) -> None:
    count = 300_000
    image = new_image(size=8 * 1024**4, timeout=86400)  # to make the extents takes longer than a ticket usually lives
    with image.path.open("r+b") as file:
        for number in range(count):
            os.pwrite(file.fileno(), b"x", number * 16 * MiB)
        os.fsync(file.fileno())
    memory = daemon.resident_memory()
    with daemon.connect("unix", timeout=600) as connection:
        extents = connection.get(f"{image.url}/extents").json()
    assert len(extents) == 2 * count
    assert daemon.peak_memory() - memory < 16 * MiB
