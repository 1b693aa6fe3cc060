# SPDX-License-Identifier: Apache-2.0
"""Limits on rates: they hold for a ticket and for a tenant, and what waits for them ends at once when it has to.

Long measurements run with IMAGEIO_TEST_LONG=1.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, KiB, MakeImage, MiB, make_image
from tests.support.polling import eventually
from tests.support.pump import Pump
from tests.support.realstorage import mounted
from tests.support.services import Service

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
#: The least rate: what is moved now has to be paid for seconds.
LEAST = 64 * KiB
SIZE = 16 * MiB


def limit(daemon: Daemon, image: Image, rate: int) -> None:
    answer = daemon.control("PATCH", f"/tickets/{image.ticket}", json.dumps({"rate": rate}).encode())
    assert answer.status == 200, answer


def waiting(daemon: Daemon, image: Image) -> Callable[[], bool]:
    """Return whether more and more time is spent with waiting for the limit."""
    before = daemon.status(image.ticket)["limited"]
    return lambda: bool(daemon.status(image.ticket)["limited"] > before)


def test_get_tells_rate_and_tenant(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(rate=LEAST, tenant="blue")
    status = daemon.status(image.ticket)
    assert (status["rate"], status["tenant"], status["limited"]) == (LEAST, "blue", 0)
    limit(daemon, image, 0)
    assert daemon.status(image.ticket)["rate"] == 0


@pytest.mark.parametrize(
    "body", [b'{"rate": -1}', b'{"rate": 1}', b'{"rate": 1e6}', b'{"rate": "5M"}', b'{"rate": 17179869185}', b"{}"]
)
def test_malformed_rate_changes_nothing(daemon: Daemon, new_image: MakeImage, body: bytes) -> None:
    image = new_image(rate=LEAST)
    assert daemon.control("PATCH", f"/tickets/{image.ticket}", body).status == 400
    assert daemon.status(image.ticket)["rate"] == LEAST
    answer = daemon.control("PATCH", "/tickets/nobodys", b'{"rate": 65536}')
    assert answer.status == 404


def test_limited_transfer_moves_what_it_should(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=4 * MiB, rate=32 * MiB)
    data = os.urandom(4 * MiB)
    assert client.put(image.url, data).status == 200
    assert client.get(image.url).body == data
    assert image.content() == data


@pytest.mark.alone
def test_rate_holds_for_both_directions_together(service: Service, new_image: MakeImage) -> None:
    image = new_image(size=SIZE, rate=10_000_000)
    with ExitStack() as pumps:
        both = [
            pumps.enter_context(Pump(service.daemon, image, SIZE, uploads=up, service=service.name))
            for up in (True, False)
        ]
        both[0].until(3)
        rate = sum(pump.rate(1, 3) for pump in both)
        assert 8_000_000 < rate < 11_500_000
        assert min(pump.rate(1, 3) for pump in both) > 2_000_000, "both move"
    assert service.daemon.status(image.ticket)["limited"] > 1


@pytest.mark.alone
def test_changed_rate_counts_at_once(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(size=SIZE, rate=LEAST)
    with Pump(daemon, image, SIZE, uploads=True) as pump:
        eventually(waiting(daemon, image), "it waits")
        limit(daemon, image, 20_000_000)
        changed = pump.total
        eventually(lambda: pump.total > changed + 5 * MiB, "it goes on", timeout=2)
        limit(daemon, image, 0)
        eventually(lambda: pump.total > changed + 100 * MiB, "there is no limit")


@pytest.mark.alone
def test_zeros_and_extents_cost_little_and_not_nothing(
    client: Connection, daemon: Daemon, new_image: MakeImage
) -> None:
    image = new_image(size=64 * MiB, rate=LEAST)
    before = time.monotonic()
    for _ in range(12):
        assert client.patch(image.url, {"op": "zero", "offset": 0, "size": 64 * MiB}).status == 200
        assert client.get(f"{image.url}/extents").status == 200
    # 24 times 4 KiB are 1.5 s at this rate; a quarter of a second may come at once.
    assert time.monotonic() - before > 1
    assert daemon.status(image.ticket)["limited"] > 0.5


@pytest.mark.parametrize("uploads", [True, False], ids=["up", "down"])
def test_removal_ends_a_wait_at_once(daemon: Daemon, new_image: MakeImage, *, uploads: bool) -> None:
    image = new_image(size=SIZE, rate=LEAST)
    with ExitStack() as pumps:
        many = [pumps.enter_context(Pump(daemon, image, SIZE, uploads=uploads)) for _ in range(8)]
        eventually(waiting(daemon, image), "they wait")
        began = time.monotonic()
        daemon.remove(image.ticket)
        for pump in many:
            pump.thread.join(5)
            assert not pump.thread.is_alive()
        # Eight pieces take 8 s.
        assert time.monotonic() - began < 4


def test_stop_ends_waits(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(daemon={"shutdown_timeout": 1})
    image = make_image(own, tmp_path)(size=SIZE, rate=LEAST)
    with ExitStack() as pumps:
        for number in range(8):
            pumps.enter_context(Pump(own, image, SIZE, uploads=number % 2 == 0))
        eventually(waiting(own, image), "they wait")
        own.stop(timeout=8)


def test_wait_is_no_inactivity(client: Connection, daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(size=SIZE, rate=LEAST, inactivity_timeout=1)
    # The second one waits for 2 s, until the first is paid.
    for offset in (0, 128 * KiB):
        assert client.put_at(image.url, offset, bytes(128 * KiB)).status == 200
    assert client.get(image.url, {"Range": "bytes=0-4095"}).status == 206
    assert daemon.status(image.ticket)["limited"] > 1.5


def test_waiting_ticket_takes_nothing_from_others(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(daemon={"buffer_memory": "28M"})
    make = make_image(own, tmp_path)
    slow, fast = make(size=SIZE, rate=LEAST), make(size=SIZE)
    with ExitStack() as pumps:
        for number in range(16):
            pumps.enter_context(Pump(own, slow, SIZE, uploads=number % 2 == 0))
        eventually(waiting(own, slow), "they wait")
        with own.connect("unix") as connection:
            began = time.monotonic()
            assert connection.put(fast.url, bytes(SIZE)).status == 200
            assert connection.get(fast.url).body == bytes(SIZE)
            assert time.monotonic() - began < 5
        own.remove(slow.ticket)


def test_default_rate_is_for_tickets_that_tell_none(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(limits={"rate": "1M"})
    make = make_image(own, tmp_path)
    assert own.status(make().ticket)["rate"] == MiB
    assert own.status(make(rate=0).ticket)["rate"] == 0
    assert own.status(make(rate=LEAST).ticket)["rate"] == LEAST


@pytest.mark.alone
def test_tenants_have_equal_parts_whatever_they_open(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(limits={"tenant_rate": "8M"})
    seconds = 12 if LONG else 4
    with ExitStack() as pumps:
        make = make_image(own, tmp_path)
        images = {
            tenant: [make(size=SIZE, tenant=tenant) for _ in range(count)] for tenant, count in (("a", 3), ("b", 1))
        }
        running = {
            tenant: [
                pumps.enter_context(Pump(own, image, SIZE, uploads=number % 2 == 0))
                for image in group
                for number in range(2 if tenant == "a" else 1)
            ]
            for tenant, group in images.items()
        }
        running["b"][0].until(seconds)
        rates = {tenant: sum(pump.rate(2, seconds) for pump in group) for tenant, group in running.items()}
    assert rates["a"] == pytest.approx(rates["b"], rel=0.1 if LONG else 0.3)
    assert rates["a"] == pytest.approx(8 * MiB, rel=0.1 if LONG else 0.3)


def test_rate_of_one_tenant_is_changed_while_it_transfers(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(limits={"tenants": f"red:{LEAST // 1024}K"})
    make = make_image(own, tmp_path)
    slow, fast = make(size=MiB, tenant="red"), make(size=MiB, tenant="blue")
    with own.connect("unix") as connection:
        began = time.monotonic()
        assert connection.put(fast.url, bytes(MiB)).status == 200
        assert time.monotonic() - began < 5
    with own.connect("unix", timeout=60) as connection:
        began = time.monotonic()
        connection.send(encode_request("GET", slow.url, {}, None))  # 16 s at this rate
        eventually(lambda: own.status(slow.ticket)["limited"] > 0, "it waits for its limit")
        assert own.control("PATCH", "/limits", b'{"tenants": {"red": null}}').json().get("tenants") is None
        assert connection.receive().status == 200
        assert time.monotonic() - began < 10


def test_kept_ticket_keeps_its_changed_rate(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon(daemon={"state_dir": str(tmp_path / "state")})
    image = make_image(own, tmp_path)(rate=LEAST, tenant="blue")
    limit(own, image, 5 * MiB)
    own.stop()
    own.restart()
    status = own.status(image.ticket)
    assert (status["rate"], status["tenant"]) == (5 * MiB, "blue")


@pytest.mark.alone
@pytest.mark.skipif(not LONG or os.geteuid() != 0, reason="takes minutes, and mounts: IMAGEIO_TEST_LONG=1, as root")
@pytest.mark.parametrize("service", ["tls", "unix"])
@pytest.mark.parametrize("uploads", [True, False], ids=["up", "down"])
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("rate", [10_000_000, 100_000_000])
def test_rate_holds_within_5_percent(
    make_daemon: MakeDaemon, tmp_path: Path, service: str, rate: int, connections: int, *, uploads: bool
) -> None:
    own = make_daemon()
    with mounted("tmpfs", tmp_path, 256 * MiB) as directory, ExitStack() as pumps:
        image = make_image(own, directory)(content=bytes(128 * MiB), rate=rate)
        size = 128 * MiB
        running = [
            pumps.enter_context(Pump(own, image, size, uploads=uploads, service=service)) for _ in range(connections)
        ]
        running[0].until(12)
        found = sum(pump.rate(3, 12) for pump in running)
    print(f"{found / rate:.3f}")
    assert found == pytest.approx(rate, rel=0.05)
