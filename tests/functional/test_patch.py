# SPDX-License-Identifier: Apache-2.0
"""PATCH: zero and flush."""

import json
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB
from tests.support.places import Trait, needs


def zeroed(before: bytes, offset: int, size: int) -> bytes:
    return before[:offset] + bytes(size) + before[offset + size :]


@pytest.mark.every_kind
@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, MiB), (0, 1), (MiB - 1, 1), (4096, 4096), (1, 4095), (4095, 2), (100, 70_000), (0, 0), (MiB, 0)],
)
def test_zero_makes_a_range_read_as_zeros(client: Connection, image: Image, offset: int, size: int) -> None:
    before = image.content()
    answer = client.patch(image.url, {"op": "zero", "offset": offset, "size": size})
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")
    assert image.content() == zeroed(before, offset, size)


def test_zero_starts_at_0_by_default(client: Connection, image: Image) -> None:
    before = image.content()
    assert client.patch(image.url, {"op": "zero", "size": 5000}).status == 200
    assert image.content() == zeroed(before, 0, 5000)


@pytest.mark.every_kind
@pytest.mark.parametrize("flush", [True, False])
def test_zero_with_flush(client: Connection, image: Image, flush: bool) -> None:
    assert client.patch(image.url, {"op": "zero", "size": 5000, "flush": flush}).status == 200
    assert image.read(0, 5000) == bytes(5000)


@pytest.mark.every_kind
@needs(Trait.SPACE)
def test_zero_of_a_sparse_ticket_gives_the_space_back(client: Connection, new_image: MakeImage) -> None:
    image = new_image(sparse=True)
    assert client.patch(image.url, {"op": "zero", "size": MiB, "flush": True}).status == 200
    assert image.content() == bytes(MiB)
    assert image.path.stat().st_blocks == 0


@pytest.mark.every_kind
@needs(Trait.SPACE)
def test_zero_of_a_ticket_that_is_not_sparse_keeps_the_space(client: Connection, new_image: MakeImage) -> None:
    image = new_image(sparse=False)
    assert client.patch(image.url, {"op": "zero", "size": MiB, "flush": True}).status == 200
    assert image.content() == bytes(MiB)
    assert image.path.stat().st_blocks * 512 >= MiB


@pytest.mark.every_kind
@needs(Trait.GROWS)
def test_zero_lets_a_file_grow_to_the_size_of_its_ticket(client: Connection, new_image: MakeImage) -> None:
    image = new_image(b"start", ticket_size=MiB)
    assert client.patch(image.url, {"op": "zero", "offset": 100_000, "size": MiB - 100_000}).status == 200
    assert image.content() == b"start" + bytes(MiB - 5)


@pytest.mark.every_kind
@needs(Trait.QUICK_ZERO)
def test_zero_of_8_tib_is_quick(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=8 * 1024**4, sparse=True)
    assert client.patch(image.url, {"op": "zero", "size": 8 * 1024**4}).status == 200


@pytest.mark.every_kind
def test_flush(client: Connection, image: Image) -> None:
    answer = client.patch(image.url, {"op": "flush"})
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")


def test_flush_ignores_other_keys(client: Connection, image: Image) -> None:
    before = image.content()
    assert client.patch(image.url, {"op": "flush", "offset": -1, "size": "x"}).status == 200
    assert image.content() == before


def test_zero_ignores_unknown_keys(client: Connection, image: Image) -> None:
    assert client.patch(image.url, {"op": "zero", "size": 10, "colour": "red"}).status == 200


@pytest.mark.parametrize(
    "operation",
    [
        {},
        {"op": "trim", "size": 10},
        {"op": None},
        {"op": 7},
        {"op": ["zero"]},
        {"op": "ZERO", "size": 10},
        {"op": "zero"},
        {"op": "zero", "offset": 10},
        {"op": "zero", "size": -1},
        {"op": "zero", "size": None},
        {"op": "zero", "size": "10"},
        {"op": "zero", "size": 10.0},
        {"op": "zero", "size": True},
        {"op": "zero", "size": 10, "offset": -1},
        {"op": "zero", "size": 10, "offset": None},
        {"op": "zero", "size": 10, "offset": "0"},
        {"op": "zero", "size": 10, "offset": 0.5},
        {"op": "zero", "size": 10, "offset": False},
        {"op": "zero", "size": 10, "flush": 1},
        {"op": "zero", "size": 10, "flush": "y"},
        {"op": "zero", "size": 10, "flush": None},
        [],
        ["zero"],
        None,
        "flush",
        7,
    ],
    ids=json.dumps,
)
def test_a_bad_operation_changes_nothing_and_is_told_why(client: Connection, image: Image, operation: Any) -> None:
    before = image.content()
    answer = client.patch(image.url, operation)
    assert answer.status == 400
    assert len(answer.text) > 5
    assert image.content() == before
    assert client.patch(image.url, {"op": "flush"}).status == 200, "the connection stays usable"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 30_000, b'{"op": "flush"} x', b'{"op":"flush","size":NaN'])
def test_a_body_that_is_no_json_is_refused(client: Connection, image: Image, body: bytes) -> None:
    answer = client.request("PATCH", image.url, None, body)
    assert answer.status == 400
    assert answer.headers["Content-Type"] == "text/plain; charset=UTF-8"


def test_a_document_over_64_kib_is_refused(client: Connection, image: Image) -> None:
    before = image.content()
    answer = client.patch(image.url, {"op": "zero", "size": 10, "padding": "x" * 65_536})
    assert (answer.status, answer.code) == (413, "too_large")
    assert image.content() == before


def test_a_document_just_below_64_kib_is_read(client: Connection, image: Image) -> None:
    document = b'{"op": "flush", "padding": "%b"}'
    body = document % (b"x" * (65_536 - len(document) + 2))
    assert len(body) == 65_536
    assert client.request("PATCH", image.url, None, body).status == 200


@pytest.mark.every_kind
@pytest.mark.parametrize("document", [{"op": "zero", "size": 1, "offset": MiB}, {"op": "zero", "size": MiB + 1}])
def test_zero_outside_of_the_ticket(client: Connection, image: Image, document: dict[str, Any]) -> None:
    before = image.content()
    answer = client.patch(image.url, document)
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{MiB}"
    assert image.content() == before
    assert client.get(image.url).status == 200, "the connection stays usable"


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30])
@pytest.mark.parametrize("key", ["offset", "size"])
def test_numbers_no_disk_has_are_refused(client: Connection, image: Image, key: str, number: int) -> None:
    answer = client.patch(image.url, {"op": "zero", "offset": 0, "size": 1} | {key: number})
    assert answer.status in (400, 416)


@pytest.mark.parametrize("operation", [{"op": "flush"}, {"op": "zero", "size": 10}], ids=lambda op: op["op"])
def test_a_read_only_ticket_allows_no_change(
    client: Connection, new_image: MakeImage, operation: dict[str, Any]
) -> None:
    image = new_image(ops=["read"])
    before = image.content()
    answer = client.patch(image.url, operation)
    assert (answer.status, answer.closes) == (403, True)
    assert image.content() == before


def test_a_body_may_be_chunked(client: Connection, image: Image) -> None:
    client.send(f"PATCH {image.url} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    client.send(b'8\r\n{"op": "\r\n7\r\nflush"}\r\n0\r\n\r\n')
    assert client.receive().status == 200


@pytest.mark.unopened
def test_zero_of_a_missing_image_is_the_servers_fault(client: Connection, daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/does/not/exist", MiB)
    answer = client.patch(f"/images/{ticket_id}", {"op": "zero", "size": 10})
    assert answer.status == 500
