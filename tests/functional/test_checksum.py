# SPDX-License-Identifier: Apache-2.0
"""GET of an image's checksum."""

import hashlib
import json
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs


def digest(algorithm: str, data: bytes) -> bytes:
    options: dict[str, Any] = {"digest_size": 32} if algorithm.startswith("blake2") else {}
    return hashlib.new(algorithm, data, **options).digest()


def checksum(content: bytes, algorithm: str = "blake2b", block_size: int = 4 * MiB) -> str:
    """Return A(A(block 0) ‖ A(block 1) ‖ …), as the contract defines it."""
    blocks = (content[at : at + block_size] for at in range(0, len(content), block_size))
    return digest(algorithm, b"".join(digest(algorithm, block) for block in blocks)).hex()


CONTENT = pattern(9 * MiB + 12_345)


@pytest.mark.every_kind
def test_by_default_it_is_blake2b_over_blocks_of_4_mib(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(f"{new_image(CONTENT).url}/checksum")
    assert answer.status == 200
    assert answer.json() == {"algorithm": "blake2b", "block_size": 4 * MiB, "checksum": checksum(CONTENT)}


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "sha256", "sha512", "sha3_256", "blake2b", "blake2s"])
def test_algorithms(client: Connection, new_image: MakeImage, algorithm: str) -> None:
    answer = client.get(f"{new_image(CONTENT).url}/checksum?algorithm={algorithm}").json()
    assert answer == {"algorithm": algorithm, "block_size": 4 * MiB, "checksum": checksum(CONTENT, algorithm)}


@pytest.mark.every_kind
@pytest.mark.parametrize("block_size", [MiB, MiB + 4096, 3 * MiB, 16 * MiB])
def test_block_sizes(client: Connection, new_image: MakeImage, block_size: int) -> None:
    answer = client.get(f"{new_image(CONTENT).url}/checksum?block_size={block_size}").json()
    assert answer == {
        "algorithm": "blake2b",
        "block_size": block_size,
        "checksum": checksum(CONTENT, block_size=block_size),
    }


@pytest.mark.parametrize(
    "block_size", ["0", "4096", "1048575", "1048577", "16781312", "33554432", "-4194304", "x", "", "4M", "4194304.0"]
)
def test_other_block_sizes_are_refused(client: Connection, image: Image, block_size: str) -> None:
    assert client.get(f"{image.url}/checksum?block_size={block_size}").status == 400


@pytest.mark.parametrize("algorithm", ["", "crc32", "shake_128", "SHA-1x", "blake2b%00", "../../etc/passwd"])
def test_other_algorithms_are_refused(client: Connection, image: Image, algorithm: str) -> None:
    answer = client.get(f"{image.url}/checksum?algorithm={algorithm}")
    assert answer.status == 400
    assert client.get(f"{image.url}/checksum").status == 200, "the connection stays usable"


@pytest.mark.every_kind
@pytest.mark.parametrize("size", [0, 1, 4 * MiB, 4 * MiB + 1, 100 * MiB + 5])
def test_a_hole_counts_as_zeros(client: Connection, new_image: MakeImage, size: int) -> None:
    assert client.get(f"{new_image(size=size).url}/checksum").json()["checksum"] == checksum(bytes(size))


@pytest.mark.every_kind
def test_data_between_holes(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=20 * MiB + 1, pieces={5 * MiB: pattern(5000), 18 * MiB - 100: pattern(200)})
    assert client.get(f"{image.url}/checksum").json()["checksum"] == checksum(image.content())


@pytest.mark.every_kind
def test_it_ends_with_the_ticket(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ticket_size=MiB)
    assert client.get(f"{image.url}/checksum").json()["checksum"] == checksum(CONTENT[:MiB])


@pytest.mark.every_kind
@needs(Trait.EXACT)
def test_it_ends_with_the_image(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ticket_size=100 * MiB)
    assert client.get(f"{image.url}/checksum").json()["checksum"] == checksum(CONTENT)


@pytest.mark.every_kind
@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 1), (0, len(CONTENT)), (4096, 4096), (8192, 5 * MiB + 1), (MiB + 4096, 8 * MiB), (9 * MiB, 12_345)],
)
def test_a_range_is_cut_in_blocks_from_its_own_begin(
    client: Connection, new_image: MakeImage, offset: int, length: int
) -> None:
    answer = client.get(f"{new_image(CONTENT).url}/checksum?offset={offset}&length={length}&block_size={MiB}").json()
    assert answer == {
        "algorithm": "blake2b",
        "block_size": MiB,
        "checksum": checksum(CONTENT[offset : offset + length], block_size=MiB),
        "offset": offset,
        "length": length,
    }


@pytest.mark.parametrize(
    ("query", "offset", "length"),
    [
        (f"offset={8 * MiB}", 8 * MiB, MiB + 12_345),
        ("offset=0", 0, len(CONTENT)),
        ("length=5000", 0, 5000),
    ],
)
def test_half_a_range_goes_from_the_begin_or_to_the_end(
    client: Connection, new_image: MakeImage, query: str, offset: int, length: int
) -> None:
    answer = client.get(f"{new_image(CONTENT).url}/checksum?{query}").json()
    assert (answer["offset"], answer["length"]) == (offset, length)
    assert answer["checksum"] == checksum(CONTENT[offset : offset + length])


def test_a_range_begins_and_ends_inside_of_holes(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=40 * MiB, pieces={5 * MiB: pattern(5000), 18 * MiB - 100: pattern(200)})
    for offset, length in [(MiB, 10 * MiB), (5 * MiB + 4096, 13 * MiB - 4196), (20 * MiB, 20 * MiB)]:
        answer = client.get(f"{image.url}/checksum?offset={offset}&length={length}").json()
        assert answer["checksum"] == checksum(image.content()[offset : offset + length])


@pytest.mark.parametrize("query", ["offset=1", "offset=512", "offset=-4096", "offset=", "offset=4k", "length=0"])
@pytest.mark.parametrize("rest", ["", "&length=1x", "&length=-1"])
def test_malformed_ranges_are_refused(client: Connection, image: Image, query: str, rest: str) -> None:
    assert client.get(f"{image.url}/checksum?{query}{rest}").status == 400


@pytest.mark.every_kind
@pytest.mark.parametrize(
    "query",
    [
        f"offset={12 * MiB}",
        f"offset={12 * MiB}&length=1",
        f"offset={12 * MiB - 4096}&length=4097",
        f"length={12 * MiB + 1}",
        f"offset={4096 * 10**20}",
        f"length={10**39 - 1}",
    ],
)
def test_ranges_outside_of_the_image_are_refused(client: Connection, new_image: MakeImage, query: str) -> None:
    answer = client.get(f"{new_image(size=12 * MiB).url}/checksum?{query}")
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{12 * MiB}")


@needs(Trait.EXACT)
def test_a_range_ends_with_the_image_and_not_with_the_ticket(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ticket_size=100 * MiB)
    assert client.get(f"{image.url}/checksum?offset=4096").json()["length"] == len(CONTENT) - 4096
    answer = client.get(f"{image.url}/checksum?offset=4096&length={len(CONTENT)}")
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{len(CONTENT)}")


@needs(Trait.ZEROS)
def test_an_empty_disk_of_1_tib_is_quick(client: Connection, new_image: MakeImage) -> None:
    assert client.get(f"{new_image(size=1024**4).url}/checksum?block_size={16 * MiB}").status == 200


def test_a_ticket_that_may_read_is_needed(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(f"{new_image(ops=[]).url}/checksum")
    assert (answer.status, answer.closes) == (403, True)


def test_the_list_of_algorithms_needs_no_ticket(client: Connection) -> None:
    answer = client.get("/images/any-id/checksum/algorithms")
    assert answer.status == 200
    names = answer.json()["algorithms"]
    assert names == sorted(names)
    assert {"blake2b", "blake2s", "sha1", "sha256"} <= set(names)
    assert not any(name.startswith("shake") for name in names)


def test_every_algorithm_of_the_list_works(client: Connection, image: Image) -> None:
    for name in client.get(f"{image.url}/checksum/algorithms").json()["algorithms"]:
        answer = client.get(f"{image.url}/checksum?algorithm={name}")
        assert answer.status == 200, name
        assert answer.json()["checksum"] == checksum(image.content(), name)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("md6", "'md6'"), ("%0d%0aX:%20y%00", r"'\r\nX: y\x00'"), ("a" * 500, f"'{'a' * 40}'"), ("", "''")],
)
def test_an_unknown_algorithm_is_named_with_the_known_ones(
    client: Connection, image: Image, asked: str, shown: str
) -> None:
    answer = client.get(f"{image.url}/checksum?algorithm={asked}")
    assert answer.status == 400
    assert answer.text.startswith(f"Unknown algorithm {shown}, known: ")
    known = client.get(f"{image.url}/checksum/algorithms").json()["algorithms"]
    assert answer.text.endswith(f"known: {', '.join(known)}\n")


@pytest.mark.parametrize("path", ["checksum", "checksum/algorithms"])
def test_other_methods_are_not_allowed(client: Connection, image: Image, path: str) -> None:
    answer = client.put(f"{image.url}/{path}", b"")
    assert answer.status == 405
    assert "GET" in answer.headers["Allow"]


def test_it_is_no_progress(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(ops=["read"])
    client.get(f"{image.url}/checksum")
    assert daemon.status(image.ticket)["transferred"] == 0


# The list of the digests of blocks


def listed(answer: bytes) -> list[dict[str, Any]]:
    """Return the objects in an answer of JSON Lines."""
    return [json.loads(line) for line in answer.splitlines()]


@pytest.mark.every_kind
@needs(Trait.HERE)
def test_blocks_are_listed_and_zeros_are_named(client: Connection, new_image: MakeImage) -> None:
    content = pattern(MiB) + bytes(MiB) + pattern(2 * MiB, 1) + bytes(3 * MiB) + pattern(12_345, 2)
    answer = client.get(f"{new_image(content).url}/checksum?blocks={MiB}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/jsonl")
    head, *blocks, end = listed(answer.body)
    assert head == {"algorithm": "blake2b", "block_size": MiB, "offset": 0}
    assert end == {"length": len(content), "checksum": checksum(content, block_size=MiB)}
    data = [
        {"start": start, "length": length, "digest": digest("blake2b", content[start : start + length]).hex()}
        for start, length in ((0, MiB), (2 * MiB, MiB), (3 * MiB, MiB), (7 * MiB, 12_345))
    ]
    assert [block for block in blocks if "digest" in block] == data
    zeros = [(block["start"], block["length"]) for block in blocks if "zero" in block]
    assert zeros == [(MiB, MiB), (4 * MiB, 3 * MiB)]


@needs(Trait.HERE)
def test_list_of_a_range_begins_there(client: Connection, new_image: MakeImage) -> None:
    query = f"blocks={MiB}&offset=4096&length={MiB + 10}&algorithm=sha256"
    part = CONTENT[4096 : 4096 + MiB + 10]
    head, first, last, end = listed(client.get(f"{new_image(CONTENT).url}/checksum?{query}").body)
    assert head == {"algorithm": "sha256", "block_size": MiB, "offset": 4096}
    assert first == {"start": 4096, "length": MiB, "digest": digest("sha256", part[:MiB]).hex()}
    assert last == {"start": 4096 + MiB, "length": 10, "digest": digest("sha256", part[MiB:]).hex()}
    assert end == {"length": len(part), "checksum": checksum(part, "sha256", MiB)}


@needs(Trait.HERE, Trait.HOLES)
@pytest.mark.parametrize("size", [0, 1, 64 * 1024 * MiB])
def test_list_of_a_hole_has_one_line_for_it(client: Connection, new_image: MakeImage, size: int) -> None:
    _, *blocks, end = listed(client.get(f"{new_image(size=size).url}/checksum?blocks={16 * MiB}").body)
    assert blocks == [{"start": 0, "length": size, "zero": True}][:size]
    assert end["length"] == size


@needs(Trait.HERE)
def test_long_list_comes_in_pieces(client: Connection, new_image: MakeImage) -> None:
    pieces = {at * MiB: b"x" for at in range(0, 1400, 2)}
    image = new_image(size=1400 * MiB, pieces=pieces)
    answer = client.get(f"{image.url}/checksum?blocks={MiB}")
    assert "Content-Length" not in answer.headers
    assert [block["start"] for block in listed(answer.body) if "digest" in block] == list(pieces)
    assert [block["start"] for block in listed(answer.body) if "zero" in block] == [at + MiB for at in pieces]


@pytest.mark.parametrize("size", ["", "0", "1048577", "x"])
def test_blocks_have_the_sizes_of_checksums(client: Connection, image: Image, size: str) -> None:
    answer = client.get(f"{image.url}/checksum?blocks={size}")
    assert (answer.status, b"blocks" in answer.body) == (400, True)
