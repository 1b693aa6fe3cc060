# SPDX-License-Identifier: Apache-2.0
"""A ticket that expires while its connections are idle: they end, and the image is closed."""

from pathlib import Path

from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeNbdDaemon
from tests.support.images import make_image
from tests.support.polling import eventually_async

#: Seconds in which an image is closed.
LIMIT = 30


async def test_an_idle_nbd_connection_ends(make_nbd_daemon: MakeNbdDaemon, tmp_path: Path) -> None:
    daemon, address = make_nbd_daemon()
    image = make_image(daemon, tmp_path)()
    clients = [await (await Client.connect(address)).go(image.ticket) for _ in range(3)]
    assert (await clients[0].request(0, 0, 4096)).data == image.read(0, 4096)
    daemon.extend(image.ticket, 0)
    await eventually_async(lambda: not image.place.is_open(daemon), timeout=LIMIT)
    for client in clients:
        assert await client.at_end()
        await client.close()
    daemon.extend(image.ticket, 100)
    again = await (await Client.connect(address)).go(image.ticket)
    assert (await again.request(0, 0, 4096)).data == image.read(0, 4096)
    await again.close()
