# SPDX-License-Identifier: Apache-2.0
import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.errors import StorageError
from imageio_daemon.image.extents import Extent
from imageio_daemon.image.extents_json import ExtentReader

TEXT = b'[{"start": 0, "length": 10, "zero": true, "hole": false}, {"start": 10, "length": 5, "zero": false}]'
EXTENTS = [Extent(0, 10, zero=True), Extent(10, 5)]


def read(text: bytes, length: int = 15, piece: int = 2**30, told: str = "zero") -> list[Extent]:
    reader = ExtentReader(length, told, StorageError(errno.EPROTO, "extents", "http"))
    found = [e for start in range(0, len(text), piece) for e in reader.feed(text[start : start + piece])]
    reader.end()
    return found


@pytest.mark.parametrize("piece", [1, 2, 7, 50, len(TEXT)])
def test_pieces_of_any_length_give_the_same(piece: int) -> None:
    assert read(TEXT, piece=piece) == EXTENTS


def test_white_space_does_not_matter() -> None:
    assert read(json.dumps(json.loads(TEXT), indent=4).encode() + b"\n", piece=3) == EXTENTS


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (5, [Extent(0, 5, zero=True)]),
        (10, [Extent(0, 10, zero=True)]),
        (13, [Extent(0, 10, zero=True), Extent(10, 3)]),
    ],
)
def test_only_what_is_inside_the_length_is_told(length: int, expected: list[Extent]) -> None:
    assert read(TEXT, length) == expected


def test_all_flags_are_read() -> None:
    text = b'[{"start": 0, "length": 1, "zero": true, "hole": true, "dirty": true, "durable": true}]'
    assert read(text, length=1) == [Extent(0, 1, zero=True, hole=True, dirty=True, durable=True)]


def test_the_flag_that_was_asked_about_has_to_be_told() -> None:
    with pytest.raises(StorageError):
        read(TEXT, told="dirty")


def test_nothing_of_an_empty_image() -> None:
    assert read(b"[]", length=0) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        TEXT[:-1],
        TEXT[1:],
        TEXT + b"]",
        TEXT + TEXT,
        TEXT.replace(b"}, {", b"} {"),
        TEXT.replace(b"}, {", b"}], [{"),
        TEXT.replace(b'"start": 10', b'"start": 9'),
        TEXT.replace(b'"start": 10', b'"start": 11'),
        TEXT.replace(b'"start": 0', b'"start": -1'),
        TEXT.replace(b'"start": 0', b'"start": 0.0'),
        TEXT.replace(b'"start": 0', b'"start": false'),
        TEXT.replace(b'"length": 10', b'"length": 0'),
        TEXT.replace(b'"length": 5', b'"length": 9223372036854775807'),
        TEXT.replace(b'"length": 5', b'"length": 4'),
        TEXT.replace(b'"zero": true', b'"zero": 1'),
        TEXT.replace(b'"length": 10, ', b""),
        b"[1}, {]",
        b"[[[[}",
        b"[" + b" " * 5000,
    ],
)
@pytest.mark.parametrize("piece", [1, 2**30])
def test_anything_else_is_an_error(text: bytes, piece: int) -> None:
    with pytest.raises(StorageError):
        read(text, piece=piece)


@given(st.binary(max_size=60), st.integers(1, 20))
def test_any_bytes_are_extents_or_an_error(junk: bytes, piece: int) -> None:
    with pytest.raises(StorageError):
        read(junk, piece=piece)
