# SPDX-License-Identifier: Apache-2.0
"""Fast zero: what OPTIONS tells of it, and PATCH with "fast"."""

import os
from pathlib import Path

import pytest

from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.realstorage import Storage


def options(client: Connection, image: Image) -> tuple[bool, str]:
    told = client.request("OPTIONS", image.url).json()
    return told["fast_zero"], told["zero_state"]


def filled(storage: Storage) -> Path:
    """Return an image of storage that holds a pattern."""
    path = storage.make(MiB)
    with path.open("r+b") as file:
        file.write(pattern(MiB))
        file.flush()
        os.fsync(file.fileno())  # a device drops pages of its cache when it is asked to zero them
    return path


@needs(Trait.PATH, Trait.SPACE)
@pytest.mark.parametrize("sparse", [True, False])
def test_fast_zero_is_done_or_refused_with_nothing_changed(
    client: Connection, new_image: MakeImage, storage: Storage, sparse: bool
) -> None:
    image = new_image(path=filled(storage), sparse=sparse)
    before = options(client, image)[0]
    answer = client.patch(image.url, {"op": "zero", "offset": 4096, "size": MiB // 2, "fast": True, "flush": True})
    expected = bytearray(pattern(MiB))
    if answer.status == 200:
        assert before, "it was fast, and OPTIONS said it would not be"
        expected[4096 : 4096 + MiB // 2] = bytes(MiB // 2)
    else:
        assert (answer.status, answer.code, answer.closes) == (422, "not_fast", False)
        assert not options(client, image)[0], "the storage refused, and OPTIONS does not know"
    assert client.get(image.url).body == expected
    assert client.patch(image.url, {"op": "zero", "size": MiB, "flush": True}).status == 200
    assert client.get(image.url).body == bytes(MiB)


@pytest.mark.every_kind
@pytest.mark.parametrize(("offset", "size"), [(0, MiB - 512), (512, MiB - 512), (65536, 131072), (100, 7), (0, MiB)])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_fast_zero_that_is_refused_leaves_every_byte_as_it_was(
    client: Connection, new_image: MakeImage, sparse: bool, offset: int, size: int
) -> None:
    image = new_image(pattern(MiB), sparse=sparse)
    fast = options(client, image)[0]
    answer = client.patch(image.url, {"op": "zero", "offset": offset, "size": size, "fast": True})
    expected = bytearray(pattern(MiB))
    if answer.status == 200:
        assert fast, "it was fast, and OPTIONS said it would not be"
        expected[offset : offset + size] = bytes(size)
    else:
        assert (answer.status, answer.code, answer.closes) == (422, "not_fast", False)
    assert client.get(image.url).body == expected


@needs(Trait.PATH, Trait.OWN)
@pytest.mark.parametrize("sparse", [True, False])
def test_fast_zero_works_where_storage_has_it(
    client: Connection, new_image: MakeImage, storage: Storage, sparse: bool
) -> None:
    image = new_image(path=filled(storage), sparse=sparse)
    answer = client.patch(image.url, {"op": "zero", "size": MiB, "fast": True})
    works = storage.offload and (sparse or (not storage.is_block and storage.type.allocates))
    assert answer.status == (200 if works else 422)
    assert options(client, image)[0] == works


@needs(Trait.PATH, Trait.OWN)
def test_fast_zero_of_a_part_of_a_block_is_refused_on_a_device(
    client: Connection, new_image: MakeImage, block_storage: Storage
) -> None:
    image = new_image(path=filled(block_storage), sparse=True)
    assert client.patch(image.url, {"op": "zero", "offset": 1, "size": 100, "fast": True}).status == 422
    assert client.get(image.url).body == pattern(MiB)


def test_read_only_image_has_no_fast_zero(client: Connection, new_image: MakeImage) -> None:
    assert options(client, new_image(ops=["read"]))[0] is False


def test_range_past_the_ticket_is_out_of_range_even_if_fast(client: Connection, image: Image) -> None:
    assert client.patch(image.url, {"op": "zero", "size": MiB + 1, "fast": True}).status == 416


def test_fast_must_be_true_or_false(client: Connection, image: Image) -> None:
    assert client.patch(image.url, {"op": "zero", "size": 1, "fast": 1}).status == 400


def test_the_star_tells_nothing_of_an_image(client: Connection) -> None:
    told = client.request("OPTIONS", "/images/*").json()
    assert "fast_zero" not in told
    assert "zero_state" not in told


# zero_state


@needs(Trait.PATH, Trait.OWN)
def test_sparse_image_that_is_one_hole_is_zero(client: Connection, new_image: MakeImage, file_storage: Storage) -> None:
    assert options(client, new_image(path=file_storage.make(MiB), sparse=True))[1] == "zero"


def test_image_that_is_to_be_allocated_is_unknown(client: Connection, new_image: MakeImage) -> None:
    assert options(client, new_image(size=MiB, sparse=False))[1] == "unknown"


def test_image_with_data_is_unknown(client: Connection, new_image: MakeImage) -> None:
    assert options(client, new_image(sparse=True))[1] == "unknown"


@needs(Trait.OWN)
def test_image_that_others_may_write_is_unknown(client: Connection, new_image: MakeImage) -> None:
    assert options(client, new_image(size=MiB, sparse=True, shared=True))[1] == "unknown"


@needs(Trait.OWN, Trait.HOLES)
def test_image_that_was_written_is_unknown_through_every_ticket(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=MiB, sparse=True)
    other = new_image(of=image, sparse=True)
    assert (options(client, image)[1], options(client, other)[1]) == ("zero", "zero")
    assert client.put(other.url, b"data").status == 200
    assert (options(client, image)[1], options(client, other)[1]) == ("unknown", "unknown")


@needs(Trait.OWN, Trait.RAW_FILE)
def test_image_that_another_process_has_written_is_unknown(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=MiB, sparse=True)
    assert options(client, image)[1] == "zero"
    with image.path.open("r+b") as file:
        file.write(b"data")
    assert options(client, image)[1] == "unknown"


def test_zeroed_hole_may_stay_zero_and_is_never_wrong(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=MiB, sparse=True)
    assert client.patch(image.url, {"op": "zero", "size": MiB}).status == 200
    if options(client, image)[1] == "zero":
        assert image.content() == bytes(MiB)


def test_file_shorter_than_its_ticket_is_unknown(client: Connection, new_image: MakeImage) -> None:
    # Who leaves the zeros at the end out gets a file that is too short.
    assert options(client, new_image(size=4096, ticket_size=MiB, sparse=True))[1] == "unknown"


@needs(Trait.PATH)
def test_block_device_is_unknown(client: Connection, new_image: MakeImage, block_storage: Storage) -> None:
    assert options(client, new_image(path=block_storage.make(MiB), sparse=True))[1] == "unknown"
