# SPDX-License-Identifier: Apache-2.0
"""A second reader of heads, by regular expressions, with which the reader in C is compared (RFC 9112)."""

import re

#: The limits of the reader in C.
MAX_HEAD = 16 * 1024
MAX_FIELDS = 100

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21\x22\x24-\x7e]+) HTTP/(1\.[01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t ]*([\t\x20-\x7e\x80-\xff]*?)[\t ]*")
_LENGTH = re.compile(r"[0-9]{1,18}")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_SINGLE = ("content-length", "content-range", "host", "range", "transfer-encoding", "expect")

#: The values in a head: method, target, version, length of the body (None if it is chunked), and the fields.
Said = tuple[str, str, str, int | None, dict[str, str]]


def read(data: bytes) -> Said | str | None:
    """Return the values of the head at the start of the data, or why it is refused, or None if it is not complete."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end >= 0:
        try:
            return _parse(data[:end].split(b"\r\n"))
        except ValueError as e:
            return str(e)
    if len(data) >= MAX_HEAD:
        return f"The request's head is larger than {MAX_HEAD} bytes"
    return "Invalid request: a line does not end with CRLF" if _BARE_LF.search(data) else None


def _parse(lines: list[bytes]) -> Said:
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise ValueError("Invalid request line")
    if len(lines) > MAX_FIELDS + 1:
        raise ValueError(f"The request has more than {MAX_FIELDS} header fields")
    method, target, version = (part.decode() for part in match.groups())
    fields = _fields(lines[1:])
    if version == "1.1" and "host" not in fields:
        raise ValueError("Invalid request: no Host")
    return method, target, version, _length(fields, version), fields


def _fields(lines: list[bytes]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ValueError("Invalid header line")
        name = field[1].decode().lower()
        if name in fields and name in _SINGLE:
            raise ValueError(f"Invalid request: several {name}")
        fields[name] = field[2].decode("utf-8", "surrogateescape")
    return fields


def _length(fields: dict[str, str], version: str) -> int | None:
    length, coding = fields.get("content-length"), fields.get("transfer-encoding")
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise ValueError("Invalid Content-Length")
    if coding is None:
        return int(length or 0)
    if length is not None:
        raise ValueError("Invalid request: Content-Length and Transfer-Encoding")
    if not coding.isascii() or coding.lower() != "chunked" or version != "1.1":
        raise ValueError("Invalid Transfer-Encoding: only chunked is served")
    return None
