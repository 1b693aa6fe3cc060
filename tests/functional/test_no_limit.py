# SPDX-License-Identifier: Apache-2.0
"""Tickets whose size says that there is no limit, as existing tools install them: the image is the limit."""

import pytest

from tests.functional.test_checksum import checksum
from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs

CONTENT = pattern(MiB)


@pytest.fixture(params=[2**63, 2**64], ids=["2^63", "2^64"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def image(new_image: MakeImage, size: int) -> Image:
    return new_image(CONTENT, ticket_size=size)


@pytest.mark.every_kind
def test_the_declared_size_is_told(daemon: Daemon, image: Image, size: int) -> None:
    assert daemon.status(image.ticket)["size"] == size


@pytest.mark.every_kind
def test_requests_of_one_connection_reach_all_of_the_image(client: Connection, image: Image) -> None:
    for number in range(3):
        data = pattern(5000, number)
        answer = client.get(image.url, {"Range": f"bytes={MiB - 4096}-"})
        assert (answer.status, answer.headers["Content-Range"]) == (206, f"bytes {MiB - 4096}-{MiB - 1}/{MiB}")
        assert client.put(f"{image.url}?flush=n", data, {"Content-Range": "bytes 8192-*/*"}).status == 200
        assert client.patch(image.url, {"op": "zero", "offset": 65536, "size": 4096}).status == 200
        assert client.patch(image.url, {"op": "flush"}).status == 200
        assert client.get(image.url, {"Range": "bytes=8192-13191"}).body == data
        assert client.get(image.url, {"Range": f"bytes={MiB}-"}).status == 416
        assert client.get(image.url).body == image.content()
    assert image.read(65536, 4096) == bytes(4096)


@pytest.mark.every_kind
def test_extents_and_checksum_are_those_of_the_image(client: Connection, image: Image) -> None:
    extents = client.get(f"{image.url}/extents").json()
    assert extents[0]["start"] == 0
    assert sum(extent["length"] for extent in extents) == MiB
    assert client.get(f"{image.url}/checksum").json()["checksum"] == checksum(CONTENT)


@pytest.mark.every_kind
def test_options_of_the_image(client: Connection, image: Image) -> None:
    assert client.request("OPTIONS", image.url).status == 200


@needs(Trait.GROWS)
def test_a_file_grows(client: Connection, image: Image) -> None:
    assert client.put(image.url, b"more", {"Content-Range": f"bytes {MiB}-*/*"}).status == 200
    assert image.content() == CONTENT + b"more"


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63, 2**64 - 2])
def test_no_image_has_bytes_that_no_offset_names(client: Connection, image: Image, offset: int) -> None:
    for answer in (
        client.get(image.url, {"Range": f"bytes={offset}-"}),
        client.patch(image.url, {"op": "zero", "offset": offset, "size": 2}),
        client.put(image.url, b"xy", {"Content-Range": f"bytes {offset}-*/*", "Expect": "100-continue"}),
    ):
        assert answer.status == 416
    assert image.content() == CONTENT
