# SPDX-License-Identifier: Apache-2.0
"""Connections of a daemon, and its end."""

import asyncio
import signal
import ssl
import time
from pathlib import Path

import pytest

from imageio_daemon.lifecycle.memory_shares import LEAST
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeNbdDaemon
from tests.frontends.nbd.world import MiB
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.images import pattern
from tests.support.processes import thread_names

SIZE = 8 * MiB


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(pattern(SIZE))
    return path


async def test_connections_are_served_by_c(make_nbd_daemon: MakeNbdDaemon, image: Path) -> None:
    daemon, address = make_nbd_daemon()
    ticket = daemon.add_ticket(image, size=SIZE)
    clients = [await (await Client.connect(address)).go(ticket) for _ in range(4)]
    try:
        for i, client in enumerate(clients):
            assert (await client.request(0, i * MiB, MiB)).data == pattern(SIZE)[i * MiB : (i + 1) * MiB]
        assert thread_names(daemon.pid).count("nbd-lane") >= 4
        assert daemon.status(ticket)["connections"] == 4
    finally:
        for client in clients:
            await client.close()


async def test_least_memory_that_is_allowed_is_enough(certificates: Certificates, image: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    nbd = {"enable": True, "port": -1, "socket": address}
    config: dict[str, Section] = {"daemon": {"buffer_memory": LEAST}, "nbd": nbd}
    with Daemon(certificates, config) as daemon:
        client = await (await Client.connect(address)).go(daemon.add_ticket(image, size=SIZE))
        assert (await client.request(0, 0, SIZE)).data == pattern(SIZE)
        await client.close()


async def test_daemon_stops_with_clients_that_are_idle(make_nbd_daemon: MakeNbdDaemon, image: Path) -> None:
    daemon, address = make_nbd_daemon()
    clients = [await (await Client.connect(address)).go(daemon.add_ticket(image, size=SIZE)) for _ in range(4)]
    daemon.stop()
    for client in clients:
        assert await client.at_end()
        await client.close()


@pytest.mark.parametrize("state", ["greeted", "in TLS", "in transmission"])
@pytest.mark.alone
async def test_idle_client_of_tls_does_not_delay_the_end(
    make_nbd_daemon: MakeNbdDaemon, image: Path, certificates: Certificates, state: str
) -> None:
    daemon, _ = make_nbd_daemon(tls="required")
    ticket = daemon.add_ticket(image, size=SIZE)
    match = daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert match is not None
    client = await Client.connect(("localhost", int(match[1])))
    if state != "greeted":
        await client.start_tls(ssl.create_default_context(cafile=str(certificates.cafile)))
    if state == "in transmission":
        await client.go(ticket)
    client.pause_reading()  # it does not answer a farewell, either
    daemon.send_signal(signal.SIGTERM)
    await asyncio.to_thread(daemon.log.wait_for, "stopping")
    started = time.monotonic()
    await asyncio.to_thread(daemon.log.wait_for, "stopped")
    taken = time.monotonic() - started
    await asyncio.to_thread(daemon.wait)
    await client.close()
    assert taken < 0.5
