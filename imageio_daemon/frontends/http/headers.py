# SPDX-License-Identifier: Apache-2.0
"""Parsers of the values in a request: numbers, ranges, queries, paths and JSON bodies.

They refuse text that two readers could understand differently, because a byte that is written to the wrong place
corrupts an image. Such text has signs, white space inside numbers, digits of other scripts, `1_000`, several ranges, no
unit, or JSON's `true` for a number.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote_plus, unquote_to_bytes

from ...errors import InvalidRequest, OutOfRange
from ...transfers.keys import MAX_ID
from ...units import KiB, MiB

#: Most digits of a number. The largest offset, 2**63 - 1, has 19. A longer number is valid, and past every image.
MAX_DIGITS = 39
#: The value of every longer number in a range.
PAST_ALL = 10**MAX_DIGITS
#: Most bytes of a JSON body. The largest valid ticket (4 KiB of url, 1 KiB of file name, all escaped) is below 40 KiB.
MAX_JSON = 64 * KiB
#: Most bytes of the JSON body of a finalize: room for 15,000 digests of blocks, or 60 GiB in blocks of 4 MiB.
MAX_FINALIZE = 1 * MiB
#: Most parameters of a query. No resource knows more than four.
MAX_QUERY = 32
#: Most slashes at which a path is split; the rest stays one segment. No resource has more than four segments.
MAX_SEGMENTS = 8
#: Most characters of a segment or parameter that is decoded: a ticket id with all bytes escaped. A longer one stays as
#: it is, and names nothing.
MAX_ESCAPED = 3 * MAX_ID

_NUMBER = rf"[0-9]{{1,{MAX_DIGITS}}}"
_DIGITS = re.compile(_NUMBER, re.ASCII)
#: Content-Range of a request (RFC 9110 14.4, 14.5). C parses the same in read_content_range(). For answers of other
#: servers, see proxy/passed_answers.py.
_CONTENT_RANGE = re.compile(rf"bytes ({_NUMBER})-({_NUMBER}|\*)/({_NUMBER}|\*)", re.ASCII)
_RANGES = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(.*)", re.ASCII)
#: A range of the Range field. Its numbers may be as long as the head allows (RFC 9110 14.1.2).
_RANGE = re.compile(r"(?:([0-9]+)-([0-9]+)?|-([0-9]+))", re.ASCII)


def parse_number(text: str, what: str) -> int:
    """Return the number in a text of 1 to MAX_DIGITS ASCII digits. Raises InvalidRequest, which names `what`."""
    if _DIGITS.fullmatch(text) is None:
        raise InvalidRequest(f"Invalid {what}: expected a number of at most {MAX_DIGITS} digits")
    return int(text)


def parse_target(target: str) -> tuple[list[str], dict[str, str]]:
    """Return the decoded path segments and the query parameters of a request target.

    `/images/a%2Fb?flush=n` is `["images", "a/b"]` and `{"flush": "n"}`. If a key occurs twice, its last value counts.
    The target is in origin form or absolute form (RFC 9112 3.2). Raises InvalidRequest if it has another form, more
    than MAX_QUERY parameters, or a path that is not UTF-8.
    """
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise InvalidRequest("Invalid request target")
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("?")
    pairs = query.split("&", MAX_QUERY) if query else []
    if len(pairs) > MAX_QUERY:
        raise InvalidRequest(f"Invalid query: more than {MAX_QUERY} parameters")
    parameters = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        parameters[_parameter(key)] = _parameter(value)
    return [_segment(segment) for segment in path[1:].split("/", MAX_SEGMENTS)], parameters


def _parameter(text: str) -> str:
    return text if len(text) > MAX_ESCAPED else unquote_plus(text)


def _segment(text: str) -> str:
    if len(text) > MAX_ESCAPED:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        raise InvalidRequest("Invalid path: not UTF-8") from None


def parse_choice(query: Mapping[str, str], key: str, choices: tuple[str, ...]) -> str:
    """Return the value of a query parameter, by default the first choice. Raises InvalidRequest for another value."""
    value = query.get(key, choices[0])
    if value not in choices:
        raise InvalidRequest(f"Invalid {key}: expected one of {', '.join(choices)}")
    return value


def parse_content_range(text: str | None) -> int:
    """Return the offset, in bytes, in a Content-Range (RFC 9110 14.4), or 0 without the field. Raises InvalidRequest.

    The last byte and the total must be consistent with the first byte. They have no other effect, because the framing
    of the message gives the length.
    """
    return _content_range(text)[0]


def parse_encoded_range(text: str | None) -> tuple[int, int]:
    """Return offset and length, in bytes, of the decoded content of a body, which needs a Content-Range with both ends.

    Raises InvalidRequest.
    """
    first, last = _content_range(text)
    if last is None:
        raise InvalidRequest("An encoded body needs a Content-Range with its last byte: bytes FIRST-LAST/*")
    return first, last - first + 1


def _content_range(text: str | None) -> tuple[int, int | None]:
    if text is None:
        return 0, None
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise InvalidRequest("Invalid Content-Range: expected bytes FIRST-LAST/TOTAL")
    first, last, total = match.groups()
    if last == "*":
        return int(first), None
    if int(last) < int(first):
        raise InvalidRequest("Invalid Content-Range: the last byte is before the first")
    if total != "*" and int(last) >= int(total):
        raise InvalidRequest("Invalid Content-Range: the last byte is not inside the total")
    return int(first), int(last)


@dataclass(frozen=True)
class ByteRange:
    """The bytes that a request asks for. Without `first`, the last `last` ones; without `last`, to the image's end."""

    first: int | None
    last: int | None

    def resolve(self, size: int) -> tuple[int, int]:
        """Return the offset and the length of the range, in bytes, cut at the end of the image (RFC 9110 14.1.2).

        `size` is how many bytes of the image the ticket allows to read. Raises OutOfRange if the range begins there or
        later, or is empty.
        """
        if self.first is None:
            length = min(self.last or 0, size)
            if not length:
                raise OutOfRange("Requested range is empty", size)
            return size - length, length
        if self.first >= size:
            raise OutOfRange(f"Requested range is outside of the image's {size} bytes", size)
        last = size - 1 if self.last is None else min(self.last, size - 1)
        return self.first, last - self.first + 1


def parse_range(text: str | None) -> ByteRange | None:
    """Return the range of a Range field, or None without one. Ignores a field with an unknown unit (RFC 9110 14.2).

    Raises OutOfRange if the field is malformed or has several ranges. Several ranges need a multipart body (RFC 9110
    14.6), which no client of images asks for.
    """
    if text is None:
        return None
    match = _RANGES.fullmatch(text)
    if match is None:
        raise OutOfRange("Invalid Range: expected bytes=FIRST-LAST")
    unit, ranges = match.groups()
    if unit.lower() != "bytes":
        return None
    # A recipient ignores empty elements of a list (RFC 9110 5.6.1.2).
    found = [element for element in (part.strip(" \t") for part in ranges.split(",")) if element]
    if len(found) != 1:
        raise OutOfRange("Invalid Range: exactly one range is served")
    match = _RANGE.fullmatch(found[0])
    if match is None:
        raise OutOfRange("Invalid Range: expected bytes=FIRST-LAST")
    first, last, suffix = match.groups()
    if suffix is not None:
        return ByteRange(None, _position(suffix))
    begin, end = _position(first), None if last is None else _position(last)
    if end is not None and end < begin:
        raise OutOfRange("Invalid Range: the last byte is before the first")
    return ByteRange(begin, end)


def _position(digits: str) -> int:
    """Return the number, or PAST_ALL if it has more than MAX_DIGITS digits, whose conversion would take long."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) <= MAX_DIGITS else PAST_ALL


class Zero(NamedTuple):
    """A request to make a range read as zeros. `offset` and `size` are in bytes."""

    offset: int
    size: int
    flush: bool
    fast: bool  # fail with NotFast where the storage has to write zeros


@dataclass(frozen=True)
class Flush:
    """A request to put all completed writes on stable storage."""


def parse_json(body: bytes) -> object:
    """Return the JSON document of a body in UTF-8 (RFC 8259). Raises InvalidRequest."""
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise InvalidRequest("Invalid request: the body is not JSON") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


#: json.loads() with an option makes a decoder for each document, which takes longer than parsing a PATCH.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_patch(data: object) -> Zero | Flush:
    """Return the operation that the JSON document of a PATCH asks for, if no finalize. Raises InvalidRequest."""
    if not isinstance(data, dict):
        raise InvalidRequest("Invalid request: expected a JSON object")
    op = data.get("op")
    if op == "flush":
        return Flush()
    if op != "zero":
        raise InvalidRequest("Invalid request: unknown 'op', known: zero, flush, finalize")
    if "size" not in data:
        raise InvalidRequest("Invalid request: missing 'size'")
    return Zero(
        _natural(data.get("offset", 0), "offset"),
        _natural(data["size"], "size"),
        flush=_switch(data, "flush"),
        fast=_switch(data, "fast"),
    )


def _switch(data: dict[Any, Any], key: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"Invalid request: {key!r} must be true or false")
    return value


def _natural(value: object, key: str) -> int:
    # bool is a subclass of int, but JSON's true is not a number.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**MAX_DIGITS:
        raise InvalidRequest(
            f"Invalid request: {key!r} must be an integer of at most {MAX_DIGITS} digits, not negative"
        )
    return value
