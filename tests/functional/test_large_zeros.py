# SPDX-License-Identifier: Apache-2.0
"""Zeros of one request that are longer than 2 GiB, 4 GiB and what other servers take at once: no old content is left.

tests/lab/guest_large_zeros.py does the same on NFS, tests/frontends/nbd/test_storage.py on each storage.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import MakeImage
from tests.support.large_zeros import BORDERS, LENGTH, OLD, PIECES, SIZE, START
from tests.support.nbdservers import NbdServer, nbdkit


def left(client: Connection, url: str) -> list[int]:
    """Return where in the range there is something else than zeros; what is around it has to be there."""

    def read(offset: int) -> bytes:
        return client.get(url, {"Range": f"bytes={offset}-{offset + len(OLD) - 1}"}).body

    assert read(START - len(OLD)) == read(START + LENGTH) == OLD
    return [border for border in BORDERS if read(START + border) != bytes(len(OLD))]


@pytest.mark.every_kind
def test_no_old_content_is_left(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=SIZE, pieces=PIECES, sparse=True)
    assert left(client, image.url) == BORDERS
    assert client.patch(image.url, {"op": "zero", "offset": START, "size": LENGTH, "flush": True}).status == 200
    assert left(client, image.url) == []


#: What nbdkit refuses: requests for more than 64 MiB of data; zeros may be longer (proto.md, "Block size constraints").
POLICY = ("blocksize-minimum=512", "blocksize-preferred=4096", "blocksize-maximum=64M", "blocksize-error-policy=error")

#: Servers of an empty image that tell a smaller limit, or have one.
SERVERS: dict[str, Callable[[], AbstractContextManager[NbdServer]]] = {
    "at most 64 MiB at a time": lambda: nbdkit("--filter=blocksize-policy", "memory", str(SIZE), *POLICY),
    "cuts at 64 MiB itself": lambda: nbdkit("--filter=blocksize", "memory", str(SIZE), "maxlen=64M"),
    "one connection": lambda: nbdkit("--filter=noparallel", "memory", str(SIZE)),
}


@pytest.mark.parametrize("name", SERVERS)
def test_no_old_content_is_left_on_a_server(daemon: Daemon, name: str) -> None:
    with SERVERS[name]() as server, daemon.connect("unix") as client:
        url = f"/images/{daemon.add_ticket(Path('/'), SIZE, url=server.url, sparse=True)}"
        for offset, data in PIECES.items():
            assert client.put_at(f"{url}?flush=n", offset, data).status == 200
        assert left(client, url) == BORDERS
        assert client.patch(url, {"op": "zero", "offset": START, "size": LENGTH, "flush": True}).status == 200
        assert left(client, url) == []
        daemon.remove(url.rpartition("/")[2])
