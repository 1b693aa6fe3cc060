# SPDX-License-Identifier: Apache-2.0
"""Parse what a request says: numbers, ranges, queries, paths and JSON bodies.

Everything is refused that two readers could understand differently, because a byte written to the wrong place is a
corrupt image: signs, white space inside numbers, other scripts' digits, `1_000`, several ranges, a unit that is
missing, and JSON's `true` for a number.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote_plus, unquote_to_bytes

from ...errors import InvalidRequest, OutOfRange
from ...transfers.ticket import MAX_ID
from ...units import KiB

#: Digits of a number. The largest offset, 2**63 - 1, has 19; a number with a few more is a range that no image has.
MAX_DIGITS = 39
#: Largest JSON body. The largest valid ticket (4 KiB of url, 1 KiB of file name, all escaped) is below 40 KiB.
MAX_JSON = 64 * KiB
#: Query parameters looked at. No resource knows more than two.
MAX_QUERY = 32
#: Segments of a path that are taken apart. No resource has more than four.
MAX_SEGMENTS = 8
#: Longest piece of a path or a query that is decoded: a ticket id, all of it escaped. A longer one names nothing.
MAX_ESCAPED = 3 * MAX_ID

_NUMBER = rf"[0-9]{{1,{MAX_DIGITS}}}"
_DIGITS = re.compile(_NUMBER, re.ASCII)
#: Of requests (RFC 9110 14.5). C reads the same in read_content_range(). Answers: _TOTAL in storage/http/client.py.
_CONTENT_RANGE = re.compile(rf"bytes ({_NUMBER})-({_NUMBER}|\*)/({_NUMBER}|\*)", re.ASCII)
_RANGES = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(.*)", re.ASCII)
_RANGE = re.compile(rf"(?:({_NUMBER})-({_NUMBER})?|-({_NUMBER}))", re.ASCII)


def parse_number(text: str, what: str) -> int:
    """Return a number of ASCII digits. Raises InvalidRequest that names `what`."""
    if _DIGITS.fullmatch(text) is None:
        raise InvalidRequest(f"Invalid {what}: expected a number of at most {MAX_DIGITS} digits")
    return int(text)


def parse_target(target: str) -> tuple[list[str], dict[str, str]]:
    """Return the decoded segments of a request target's path, and its query, of which the last of a key counts.

    `/images/a%2Fb?flush=n` is `["images", "a/b"]` and `{"flush": "n"}`. Raises InvalidRequest.
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
    """Return a query parameter that has one of a few values; the first is the default. Raises InvalidRequest."""
    value = query.get(key, choices[0])
    if value not in choices:
        raise InvalidRequest(f"Invalid {key}: expected one of {', '.join(choices)}")
    return value


def parse_content_range(text: str | None) -> int:
    """Return the offset that a Content-Range names; 0 without one.

    The last byte and the total must make sense, and say nothing: the length is Content-Length. Raises InvalidRequest.
    """
    if text is None:
        return 0
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise InvalidRequest("Invalid Content-Range: expected bytes FIRST-LAST/TOTAL")
    first, last, total = match.groups()
    if last != "*":
        if int(last) < int(first):
            raise InvalidRequest("Invalid Content-Range: the last byte is before the first")
        if total != "*" and int(last) >= int(total):
            raise InvalidRequest("Invalid Content-Range: the last byte is not inside the total")
    return int(first)


@dataclass(frozen=True)
class ByteRange:
    """The bytes a request asks for; `first` None: the last `last` bytes; `last` None: to the end."""

    first: int | None
    last: int | None

    def resolve(self, size: int, ticket_size: int) -> tuple[int, int]:
        """Return offset and length inside an image of which `size` bytes can be read. Raises OutOfRange.

        What the ticket allows and the image does not have is left out, as RFC 9110 14.1.2 has it; more than the
        ticket allows is refused.
        """
        if self.first is None:
            length = min(self.last or 0, size)
            if not length:
                raise OutOfRange("Requested range is empty", size)
            return size - length, length
        if self.first >= size or (self.last is not None and self.last >= ticket_size):
            raise OutOfRange(f"Requested range is outside of the image's {size} bytes", size)
        last = size - 1 if self.last is None else min(self.last, size - 1)
        return self.first, last - self.first + 1


def parse_range(text: str | None) -> ByteRange | None:
    """Return the one range of a Range header; None: no range, or one of an unknown unit (RFC 9110 14.2: ignored).

    Refuses more than one range with OutOfRange: each would need its own part of a multipart body, which no client of
    images asks for. A malformed one too.
    """
    if text is None:
        return None
    match = _RANGES.fullmatch(text)
    if match is None:
        raise OutOfRange("Invalid Range: expected bytes=FIRST-LAST")
    unit, ranges = match.groups()
    if unit.lower() != "bytes":
        return None
    # RFC 9110 5.6.1: empty elements of a list count for nothing.
    found = [element for element in (part.strip(" \t") for part in ranges.split(",")) if element]
    if len(found) != 1:
        raise OutOfRange("Invalid Range: exactly one range is served")
    match = _RANGE.fullmatch(found[0])
    if match is None:
        raise OutOfRange("Invalid Range: expected bytes=FIRST-LAST")
    first, last, suffix = match.groups()
    if suffix is not None:
        return ByteRange(None, int(suffix))
    if last is not None and int(last) < int(first):
        raise OutOfRange("Invalid Range: the last byte is before the first")
    return ByteRange(int(first), None if last is None else int(last))


class Zero(NamedTuple):
    """Make a range read as zeros."""

    offset: int
    size: int
    flush: bool
    fast: bool  # rather not at all than by writing zeros


@dataclass(frozen=True)
class Flush:
    """Put all on stable storage."""


def parse_json(body: bytes) -> object:
    """Return a JSON document. Raises InvalidRequest."""
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise InvalidRequest("Invalid request: the body is not JSON") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


#: Made once: json.loads() with an option makes one for each document, which takes longer than a PATCH's parsing.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_patch(data: object) -> Zero | Flush:
    """Return what a PATCH of an image asks for. Raises InvalidRequest."""
    if not isinstance(data, dict):
        raise InvalidRequest("Invalid request: expected a JSON object")
    op = data.get("op")
    if op == "flush":
        return Flush()
    if op != "zero":
        raise InvalidRequest("Invalid request: unknown 'op', known: zero, flush")
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
    # bool is a subclass of int, but true is no offset.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**MAX_DIGITS:
        raise InvalidRequest(
            f"Invalid request: {key!r} must be an integer of at most {MAX_DIGITS} digits, not negative"
        )
    return value
