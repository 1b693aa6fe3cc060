# SPDX-License-Identifier: Apache-2.0
"""A transfer from end to end on every type of storage, through each service."""

import random

import pytest

from tests.support.http_client import Connection
from tests.support.images import MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.realstorage import Storage

SIZE = 4 * MiB


@needs(Trait.PATH)
def test_what_was_written_is_read(client: Connection, new_image: MakeImage, storage: Storage) -> None:
    image = new_image(path=storage.make(SIZE))
    content = pattern(SIZE)
    assert client.put(image.url, content).status == 200
    assert client.get(image.url).body == content
    assert image.content() == content


@needs(Trait.PATH)
def test_any_offset_and_length(client: Connection, new_image: MakeImage, storage: Storage) -> None:
    image = new_image(path=storage.make(SIZE), sparse=True)
    expected = bytearray(SIZE)
    choose = random.Random(7)
    for number in range(40):
        offset = choose.randrange(SIZE)
        length = choose.randrange(1, min(SIZE - offset, 300_000) + 1)
        if number % 3:
            data = pattern(length, seed=number)
            assert client.put_at(image.url + "?flush=n", offset, data).status == 200
        else:
            data = bytes(length)
            assert client.patch(image.url, {"op": "zero", "offset": offset, "size": length}).status == 200
        expected[offset : offset + length] = data
    assert client.patch(image.url, {"op": "flush"}).status == 200
    assert client.get(image.url).body == expected
    assert image.content() == expected


@needs(Trait.PATH)
@pytest.mark.parametrize("sparse", [True, False])
def test_zeroing_the_whole_image(client: Connection, new_image: MakeImage, storage: Storage, sparse: bool) -> None:
    image = new_image(path=storage.make(SIZE), sparse=sparse)
    assert client.put(image.url, pattern(SIZE)).status == 200
    assert client.patch(image.url, {"op": "zero", "size": SIZE, "flush": True}).status == 200
    assert image.content() == bytes(SIZE)
    if storage.offload:
        assert (storage.allocated(image.path) < SIZE // 4) is sparse


@needs(Trait.PATH)
def test_extents_cover_the_image(client: Connection, new_image: MakeImage, storage: Storage) -> None:
    image = new_image(path=storage.make(SIZE))
    assert client.put_at(image.url, MiB, pattern(MiB)).status == 200
    extents = client.get(f"{image.url}/extents").json()
    assert sum(extent["length"] for extent in extents) == SIZE
    content = image.content()
    for extent in extents:
        if extent["zero"]:
            assert not any(content[extent["start"] : extent["start"] + extent["length"]])
    if storage.is_block:
        assert extents == [{"start": 0, "length": SIZE, "zero": False, "hole": False}]


@needs(Trait.PATH)
def test_the_checksum_is_equal_on_all_storage(client: Connection, new_image: MakeImage, storage: Storage) -> None:
    image, on_file = new_image(path=storage.make(SIZE)), new_image(size=SIZE)
    for each in (image, on_file):
        assert client.put_at(each.url, MiB, pattern(MiB)).status == 200
    assert client.get(f"{image.url}/checksum").json() == client.get(f"{on_file.url}/checksum").json()


@needs(Trait.PATH)
def test_a_device_cannot_grow(client: Connection, new_image: MakeImage, block_storage: Storage) -> None:
    image = new_image(path=block_storage.make(SIZE), ticket_size=2 * SIZE)
    refused = client.patch(image.url, {"op": "zero", "offset": SIZE, "size": 4096})
    assert refused.status == 416
    assert refused.headers["Content-Range"] == f"bytes */{SIZE}"
    assert client.get(image.url).headers["Content-Length"] == str(SIZE)
    assert client.put_at(image.url, SIZE - 1, b"xx").status == 416
