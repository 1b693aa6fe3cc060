# SPDX-License-Identifier: Apache-2.0
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.errors import InvalidRequest, OutOfRange
from imageio_daemon.frontends.http.headers import (
    MAX_DIGITS,
    MAX_QUERY,
    PAST_ALL,
    ByteRange,
    Flush,
    Zero,
    parse_choice,
    parse_content_range,
    parse_json,
    parse_number,
    parse_patch,
    parse_range,
    parse_target,
)

#: What int() takes and a header must not hold.
NOT_NUMBERS = ["", "+1", "-1", " 1", "1 ", "1_000", "0x10", "1.0", "1e3", "١٢", "²", "a", "1\n"]
MANY = "1" * (MAX_DIGITS + 1)


# Numbers


@pytest.mark.parametrize("text", ["0", "7", "007", "9223372036854775807"])
def test_digits_are_a_number(text: str) -> None:
    assert parse_number(text, "size") == int(text)


@pytest.mark.parametrize("text", [*NOT_NUMBERS, MANY])
def test_anything_else_is_no_number(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid size"):
        parse_number(text, "size")


# Targets


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/images/abc", ["images", "abc"], {}),
        ("/images/a%2Fb?flush=n&close=y", ["images", "a/b"], {"flush": "n", "close": "y"}),
        ("/images/%c3%a4", ["images", "ä"], {}),
        ("/images/a?flush=y&flush=n", ["images", "a"], {"flush": "n"}),
        ("/images/a?%66lush=%6E", ["images", "a"], {"flush": "n"}),
        ("/images/a?flush", ["images", "a"], {"flush": ""}),
        ("/images/a?", ["images", "a"], {}),
        ("/", [""], {}),
        ("/info/", ["info", ""], {}),
        ("http://host:1/images/a?x=y", ["images", "a"], {"x": "y"}),
        ("HTTPS://host", [""], {}),
        ("/a+b?c=d+e", ["a+b"], {"c": "d e"}),
    ],
)
def test_target_is_split_and_decoded(target: str, path: list[str], query: dict[str, str]) -> None:
    assert parse_target(target) == (path, query)


@pytest.mark.parametrize("target", ["*", "images/abc", "ftp://host/x", "host:443", ""])
def test_target_of_another_form_is_refused(target: str) -> None:
    with pytest.raises(InvalidRequest, match="target"):
        parse_target(target)


def test_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        parse_target("/images/%ff")


def test_endless_query_is_refused() -> None:
    parse_target("/images/a?" + "&".join(["a=b"] * MAX_QUERY))
    with pytest.raises(InvalidRequest, match="query"):
        parse_target("/images/a?" + "&".join(["a=b"] * (MAX_QUERY + 1)))


def test_first_choice_is_the_default() -> None:
    assert parse_choice({}, "flush", ("y", "n")) == "y"
    assert parse_choice({"flush": "n"}, "flush", ("y", "n")) == "n"


@pytest.mark.parametrize("value", ["", "Y", "yes", "y "])
def test_other_choices_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="y, n"):
        parse_choice({"flush": value}, "flush", ("y", "n"))


# Content-Range


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (None, 0),
        ("bytes 0-9/*", 0),
        ("bytes 5-9/10", 5),
        ("bytes 5-5/*", 5),
        ("bytes 5-*/*", 5),
        ("bytes 5-*/10", 5),
        ("bytes 9223372036854775807-*/*", 2**63 - 1),
    ],
)
def test_content_range_names_the_offset(text: str | None, offset: int) -> None:
    assert parse_content_range(text) == offset


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes",
        "bytes 0-9",
        "bytes 0-9/",
        "bytes 0/10",
        "bytes */10",
        "bytes -9/10",
        "bytes 0-/10",
        "0-9/10",
        "octets 0-9/10",
        "Bytes 0-9/10",
        "bytes=0-9/10",
        "bytes  0-9/10",
        "bytes\t0-9/10",
        " bytes 0-9/10",
        "bytes 0-9/10 ",
        "bytes 0 -9/10",
        "bytes 0-9/10\n",
        "bytes 9-8/*",
        "bytes 0-10/10",
        "bytes 0-10/9",
        f"bytes {MANY}-*/*",
        f"bytes 0-{MANY}/*",
        f"bytes 0-0/{MANY}",
        *(f"bytes {number}-*/*" for number in NOT_NUMBERS),
        *(f"bytes 0-{number}/*" for number in NOT_NUMBERS),
        *(f"bytes 0-0/{number}" for number in NOT_NUMBERS),
    ],
)
def test_other_content_ranges_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Content-Range"):
        parse_content_range(text)


# Range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=0-9", ByteRange(0, 9)),
        ("bytes=5-", ByteRange(5, None)),
        ("bytes=-5", ByteRange(None, 5)),
        ("BYTES=0-9", ByteRange(0, 9)),
        ("bytes= 0-9\t", ByteRange(0, 9)),
        ("bytes=,0-9, ", ByteRange(0, 9)),
        (None, None),
        ("seconds=0-9", None),
        (f"bytes=0-{MANY}", ByteRange(0, PAST_ALL)),
        (f"bytes={MANY}-", ByteRange(PAST_ALL, None)),
        (f"bytes=-{'9' * 8000}", ByteRange(None, PAST_ALL)),
        (f"bytes={'0' * 8000}7-{'0' * 8000}9", ByteRange(7, 9)),
    ],
)
def test_one_range_is_understood(text: str | None, expected: ByteRange | None) -> None:
    assert parse_range(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes 0-9",
        "=0-9",
        "0-9",
        "bytes =0-9",
        "bytes=-",
        "bytes=0",
        "bytes=0 - 9",
        "bytes=9-8",
        f"bytes={MANY}-8",
        "bytes=0-1,3-4",
        "bytes=0-1,0-1",
        *(f"bytes={number}-9" for number in NOT_NUMBERS if number.strip() not in ("1", "")),
        *(f"bytes=-{number}" for number in NOT_NUMBERS if number.strip() not in ("1",)),
    ],
)
def test_other_ranges_cannot_be_satisfied(text: str) -> None:
    with pytest.raises(OutOfRange) as caught:
        parse_range(text)
    assert caught.value.size is None


@pytest.mark.parametrize(
    ("wanted", "offset", "length"),
    [
        (ByteRange(0, 9), 0, 10),
        (ByteRange(0, 99), 0, 100),
        (ByteRange(99, None), 99, 1),
        (ByteRange(0, None), 0, 100),
        (ByteRange(0, 100), 0, 100),
        (ByteRange(99, 10**30), 99, 1),
        (ByteRange(None, 1), 99, 1),
        (ByteRange(None, 100), 0, 100),
        (ByteRange(None, 10**30), 0, 100),
    ],
)
def test_range_is_cut_at_the_end_of_the_image(wanted: ByteRange, offset: int, length: int) -> None:
    assert wanted.resolve(100) == (offset, length)


@pytest.mark.parametrize(
    "wanted",
    [ByteRange(100, None), ByteRange(100, 101), ByteRange(10**30, None), ByteRange(None, 0)],
)
def test_range_outside_tells_the_size(wanted: ByteRange) -> None:
    with pytest.raises(OutOfRange) as caught:
        wanted.resolve(100)
    assert caught.value.size == 100


def test_empty_image_has_no_range() -> None:
    with pytest.raises(OutOfRange):
        ByteRange(0, None).resolve(0)
    with pytest.raises(OutOfRange):
        ByteRange(None, 5).resolve(0)


@given(st.integers(0, 300), st.one_of(st.none(), st.integers(0, 300)), st.integers(0, 200))
def test_resolved_range_is_inside_the_image(first: int, last: int | None, size: int) -> None:
    try:
        offset, length = ByteRange(first, last).resolve(size)
    except OutOfRange:
        return
    assert offset == first
    assert offset + length <= size


# JSON


def test_json_is_decoded() -> None:
    assert parse_json('{"a": ["ä", 1]}'.encode()) == {"a": ["ä", 1]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}x",
        b"\xff",
        b'{"a": NaN}',
        b"-Infinity",
        b"[" * 60000,
        b"1" * 5000,
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
    ],
)
def test_other_bodies_are_not_json(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        parse_json(body)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"op": "flush"}, Flush()),
        ({"op": "flush", "size": "ignored"}, Flush()),
        ({"op": "zero", "size": 5}, Zero(0, 5, flush=False, fast=False)),
        ({"op": "zero", "size": 0, "offset": 7, "flush": True, "future": 1}, Zero(7, 0, flush=True, fast=False)),
        ({"op": "zero", "size": 5, "fast": True}, Zero(0, 5, flush=False, fast=True)),
        ({"op": "zero", "size": 10**30}, Zero(0, 10**30, flush=False, fast=False)),
    ],
)
def test_patch_is_understood(data: object, expected: Zero | Flush) -> None:
    assert parse_patch(data) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "object"),
        ([], "object"),
        ("flush", "object"),
        ({}, "op"),
        ({"op": None}, "op"),
        ({"op": ["zero"]}, "op"),
        ({"op": "trim", "size": 1}, "op"),
        ({"op": "zero"}, "missing 'size'"),
        *(({"op": "zero", "size": bad}, "'size'") for bad in (-1, 1.0, "1", None, True, [1])),
        *(({"op": "zero", "size": 1, "offset": bad}, "'offset'") for bad in (-1, 1.5, "1", None, False)),
        *(({"op": "zero", "size": 1, "flush": bad}, "'flush'") for bad in (0, 1, "true", None)),
        *(({"op": "zero", "size": 1, "fast": bad}, "'fast'") for bad in (0, 1, "true", None)),
    ],
)
def test_other_patches_are_refused_with_the_reason(data: object, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_patch(data)


# Whatever comes


@given(st.text(max_size=60))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_content_range, parse_range, parse_target):
        with contextlib.suppress(InvalidRequest, OutOfRange):
            parse(text)


@given(st.binary(max_size=200))
def test_no_body_breaks_the_parser(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_patch(parse_json(body))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.sampled_from(["op", "size", "offset", "flush", "fast"]), s),
    )
)
def test_no_document_breaks_the_parser(document: object) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_patch(parse_json(json.dumps(document).encode()))
