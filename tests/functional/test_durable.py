# SPDX-License-Identifier: Apache-2.0
"""GET extents?context=durable: what was written through a ticket and is on stable storage."""

import os

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.polling import eventually

DATA = pattern(MiB, seed=3)

pytestmark = pytest.mark.every_kind


@pytest.fixture
def empty(new_image: MakeImage) -> Image:
    """A writable image of 1 MiB of which nothing is durable."""
    return new_image(size=MiB)


def durable(client: Connection, image: Image) -> list[tuple[int, int]]:
    """Return the (start, end) ranges that are durable; all extents have to cover the image."""
    answer = client.get(f"{image.url}/extents?context=durable")
    assert answer.status == 200, answer.text
    found, place = [], 0
    for extent in answer.json():
        assert extent["start"] == place
        assert set(extent) == {"start", "length", "durable"}
        place += extent["length"]
        if extent["durable"]:
            found.append((extent["start"], place))
    assert place == MiB
    return found


def write(client: Connection, image: Image, start: int, end: int, *, flush: bool = False) -> None:
    target = image.url if flush else f"{image.url}?flush=n"
    assert client.put_at(target, start, DATA[start:end]).status == 200


def zero(client: Connection, image: Image, start: int, end: int, *, flush: bool = False) -> None:
    operation = {"op": "zero", "offset": start, "size": end - start, "flush": flush}
    assert client.patch(image.url, operation).status == 200


def flush(client: Connection, image: Image) -> None:
    assert client.patch(image.url, {"op": "flush"}).status == 200


def test_nothing_is_durable_at_first(client: Connection, empty: Image) -> None:
    assert durable(client, empty) == []


def test_what_was_written_is_durable_after_a_flush(client: Connection, empty: Image) -> None:
    write(client, empty, 4096, 12288)
    assert durable(client, empty) == []
    flush(client, empty)
    assert durable(client, empty) == [(4096, 12288)]


def test_zeros_are_durable_after_a_flush(client: Connection, empty: Image) -> None:
    zero(client, empty, 0, 65536)
    assert durable(client, empty) == []
    flush(client, empty)
    assert durable(client, empty) == [(0, 65536)]


def test_a_write_that_flushes_makes_its_own_range_durable(client: Connection, empty: Image) -> None:
    write(client, empty, 0, 4096)
    write(client, empty, 8192, 16384, flush=True)
    assert durable(client, empty) == [(8192, 16384)]


def test_zeroing_that_flushes_makes_its_own_range_durable(client: Connection, empty: Image) -> None:
    zero(client, empty, 0, 4096)
    zero(client, empty, 8192, 16384, flush=True)
    assert durable(client, empty) == [(8192, 16384)]


def test_ranges_that_touch_are_one(client: Connection, empty: Image) -> None:
    write(client, empty, 0, 4096)
    zero(client, empty, 4096, 8192)
    write(client, empty, 8192, 9000)
    flush(client, empty)
    assert durable(client, empty) == [(0, 9000)]


def test_a_change_takes_its_range_out_until_the_next_flush(client: Connection, empty: Image) -> None:
    write(client, empty, 0, 65536)
    flush(client, empty)
    write(client, empty, 10000, 20000)
    assert durable(client, empty) == [(0, 10000), (20000, 65536)]
    zero(client, empty, 0, 4096)
    assert durable(client, empty) == [(4096, 10000), (20000, 65536)]
    flush(client, empty)
    assert durable(client, empty) == [(0, 65536)]


def test_a_long_body_is_durable(client: Connection, empty: Image) -> None:
    write(client, empty, 0, MiB, flush=True)
    assert durable(client, empty) == [(0, MiB)]


@needs(Trait.HERE)
def test_record_outlives_the_close_of_the_image(client: Connection, daemon: Daemon, empty: Image) -> None:
    write(client, empty, 0, 4096, flush=True)
    daemon.extend(empty.ticket, 0)
    eventually(lambda: not empty.place.is_open(daemon), "the image is closed")
    daemon.extend(empty.ticket, 300)
    assert durable(client, empty) == [(0, 4096)]


@needs(Trait.OWN)
def test_record_ends_when_another_ticket_may_write_the_image(
    client: Connection, new_image: MakeImage, empty: Image
) -> None:
    write(client, empty, 0, 4096, flush=True)
    other = new_image(of=empty)
    assert durable(client, other) == []
    assert durable(client, empty) == []


@needs(Trait.OWN)  # a second qemu-nbd would not open the image
def test_record_stays_while_another_ticket_reads_the_image(
    client: Connection, new_image: MakeImage, empty: Image
) -> None:
    write(client, empty, 0, 4096, flush=True)
    other = new_image(of=empty, ops=["read"])
    assert client.get(other.url).status == 200
    assert durable(client, empty) == [(0, 4096)]


def test_a_ticket_that_reads_only_has_no_record(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=MiB, ops=["read"])
    assert client.get(f"{image.url}/extents?context=durable").status == 404
    assert "durable" not in client.request("OPTIONS", image.url).json()["features"]


def test_options_tell_of_the_record(client: Connection, empty: Image) -> None:
    assert "durable" in client.request("OPTIONS", empty.url).json()["features"]
    assert "durable" in client.request("OPTIONS", "/images/*").json()["features"]


@needs(Trait.HERE)
def test_status_of_the_ticket_tells_how_much_is_durable(client: Connection, daemon: Daemon, empty: Image) -> None:
    write(client, empty, 0, 10000, flush=True)
    write(client, empty, 20000, 30000)
    assert daemon.status(empty.ticket)["durable"] == 10000


@needs(Trait.OWN, Trait.RAW_FILE)
def test_an_image_that_has_become_shorter_has_an_empty_record(client: Connection, daemon: Daemon, empty: Image) -> None:
    write(client, empty, 0, 40960, flush=True)
    daemon.extend(empty.ticket, 0)
    eventually(lambda: not empty.place.is_open(daemon), "the image is closed")
    os.truncate(empty.path, 8192)
    daemon.extend(empty.ticket, 300)
    answer = client.get(f"{empty.url}/extents?context=durable")
    assert answer.json() == [{"start": 0, "length": 8192, "durable": False}]
