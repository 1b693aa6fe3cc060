# SPDX-License-Identifier: Apache-2.0
"""GET of an image's extents: what is data and what reads as zeros."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs


def data(start: int, length: int) -> dict[str, object]:
    return {"start": start, "length": length, "zero": False, "hole": False}


def zero(start: int, length: int) -> dict[str, object]:
    return {"start": start, "length": length, "zero": True, "hole": False}


@pytest.fixture
def sparse_image(new_image: MakeImage) -> Image:
    """4 MiB: a hole, 1 MiB of data at 1 MiB, a hole."""
    return new_image(size=4 * MiB, pieces={MiB: pattern(MiB)})


@pytest.mark.every_kind
@needs(Trait.HOLES)
@pytest.mark.parametrize("query", ["", "?context=zero", "?context=dirty&context=zero", "?unknown=1"])
def test_holes_of_a_file_are_zero_extents(client: Connection, sparse_image: Image, query: str) -> None:
    answer = client.get(f"{sparse_image.url}/extents{query}")
    assert answer.status == 200
    assert answer.json() == [zero(0, MiB), data(MiB, MiB), zero(2 * MiB, 2 * MiB)]


@pytest.mark.every_kind
def test_an_image_of_data_is_one_extent(client: Connection, image: Image) -> None:
    assert client.get(f"{image.url}/extents").json() == [data(0, MiB)]


@needs(Trait.HOLES)
def test_an_empty_disk_is_one_extent(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=8 * 1024**4)
    assert client.get(f"{image.url}/extents").json() == [zero(0, 8 * 1024**4)]


@pytest.mark.every_kind
def test_an_image_without_bytes_has_no_extents(client: Connection, new_image: MakeImage) -> None:
    assert client.get(f"{new_image(b'').url}/extents").json() == []


@pytest.mark.every_kind
@needs(Trait.HOLES)
def test_they_end_with_the_ticket(client: Connection, sparse_image: Image, new_image: MakeImage) -> None:
    image = new_image(of=sparse_image, ticket_size=MiB + 4096)
    assert client.get(f"{image.url}/extents").json() == [zero(0, MiB), data(MiB, 4096)]


@pytest.mark.every_kind
def test_they_end_with_the_image(client: Connection, new_image: MakeImage) -> None:
    image = new_image(ticket_size=10 * MiB)
    assert client.get(f"{image.url}/extents").json() == [data(0, MiB)]


@pytest.mark.every_kind
@needs(Trait.HOLES)
def test_they_tell_what_this_connection_has_just_written_and_zeroed(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=3 * MiB, sparse=True)
    client.put_at(image.url, 0, pattern(2 * MiB))
    client.patch(image.url, {"op": "zero", "offset": MiB, "size": MiB})
    assert client.get(f"{image.url}/extents").json() == [data(0, MiB), zero(MiB, 2 * MiB)]


@pytest.mark.every_kind
@needs(Trait.FINE_HOLES)
def test_a_long_list_is_in_order_and_without_gaps(client: Connection, new_image: MakeImage) -> None:
    count = 5000
    image = new_image(size=count * 8192, pieces={number * 8192: b"x" for number in range(count)})
    extents = client.get(f"{image.url}/extents").json()
    assert len(extents) == 2 * count
    assert extents[0]["start"] == 0
    assert all(first["start"] + first["length"] == second["start"] for first, second in pairwise(extents))
    assert extents[-1]["start"] + extents[-1]["length"] == count * 8192
    assert client.get(f"{image.url}/extents?context=zero").status == 200, "the connection stays usable"


@pytest.mark.every_kind
@pytest.mark.parametrize("dirty", [True, False])
def test_a_file_has_no_dirty_extents(client: Connection, new_image: MakeImage, dirty: bool) -> None:
    image = new_image(dirty=dirty)
    answer = client.get(f"{image.url}/extents?context=dirty")
    assert answer.status == 404
    assert client.get(f"{image.url}/extents").status == 200, "the connection stays usable"


@pytest.mark.parametrize("query", ["?context=", "?context=all", "?context=ZERO", "?context=zero&context=x", "?context"])
def test_an_unknown_context_is_refused(client: Connection, image: Image, query: str) -> None:
    assert client.get(f"{image.url}/extents{query}").status == 400


def test_a_ticket_that_may_read_is_needed(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(f"{new_image(ops=[]).url}/extents")
    assert (answer.status, answer.closes) == (403, True)


def test_they_are_no_progress(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(ops=["read"])
    client.get(f"{image.url}/extents")
    assert daemon.status(image.ticket)["transferred"] == 0


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST"])
def test_other_methods_are_not_allowed(client: Connection, image: Image, method: str) -> None:
    answer = client.request(method, f"{image.url}/extents", None, b"")
    assert answer.status == 405
    assert "GET" in answer.headers["Allow"]


def test_a_missing_image_is_the_servers_fault(client: Connection, daemon: Daemon, tmp_path: Path) -> None:
    ticket_id = daemon.add_ticket(tmp_path / "missing", MiB)
    assert client.get(f"/images/{ticket_id}/extents").status == 500
