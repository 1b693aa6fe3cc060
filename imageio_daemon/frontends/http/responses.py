# SPDX-License-Identifier: Apache-2.0
"""Answers: their header fields, their bytes, and bodies that are sent while they are still being made."""

import json
import re
import time
from collections.abc import Awaitable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import quote

from aiohttp import web

from ...errors import PeerGone
from ...runtime.request_activity import Wait, waiting
from ...transfers.ticket import Ticket

JSON = "application/json"
TEXT = "text/plain; charset=UTF-8"
BYTES = "application/octet-stream"

#: The Server header, without a version, from which attackers would learn of known holes.
SERVER = "imageio-daemon"
#: The fields of each answer that has no others of these names. A browser must not take the bytes of an image for a page
#: (the Fetch standard). A cache on the way must keep nothing (RFC 9111 5.2.2.5): the next write changes the image, and
#: the cache would go on to serve it after its ticket is removed. Without the field, Varnish keeps an image for two
#: minutes. nginx has to pass bytes on as they come, not collect them in memory and files (ngx_http_proxy_module,
#: proxy_buffering).
COMMON = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}

#: Seconds for which a browser may cache the answer to a preflight request: one day.
MAX_AGE = "86400"
#: Fields that a client of images needs. A page may read them in addition to those that the standard always allows.
EXPOSED = (
    "Accept-Ranges, Allow, Content-Disposition, Content-Length, Content-Range, Date, ETag, Retry-After, X-Error-Code"
)

#: A name without quotes (RFC 9110 5.6.2), and without escapes that programs read differently (RFC 6266 appendix D).
_TOKEN = re.compile(r"[!#$&+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Characters that are not put into quotes. Some programs decode % and two digits there, and take \ as part of the name.
_NOT_PLAIN = re.compile(r"[^ !#$&-\[\]-~]")
#: Characters that are not escaped in an extended value (attr-char, RFC 8187 3.2.1), as letters, digits and -._~
_ATTRIBUTE_SAFE = "!#$&+^`|"
#: Most characters of the name for programs that do not know extended values: the last ones, with the suffix. No file
#: system has longer names, and the answers of a lane have room for it beside the longest name with all bytes escaped.
MAX_FALLBACK = 255


def text_response(
    status: int, reason: str, headers: Mapping[str, str] | None = None, *, close: bool = False
) -> web.Response:
    """Return an answer with the reason as one line of text. With `close` it is the connection's last answer."""
    line = "".join(c if c.isprintable() else "?" for c in reason)
    return _response(status, TEXT, headers, f"{line}\n".encode("utf-8", "replace"), close=close)


def json_response(
    data: object, headers: Mapping[str, str] | None = None, *, status: int = 200, close: bool = False
) -> web.Response:
    """Return an answer with a JSON document. With `close` it is the connection's last answer."""
    return _response(status, JSON, headers, json.dumps(data).encode(), close=close)


def _response(status: int, kind: str, headers: Mapping[str, str] | None, body: bytes, *, close: bool) -> web.Response:
    response = web.Response(status=status, headers={"Content-Type": kind, **(headers or {})}, body=body)
    if close:
        response.force_close()
    return response


def cors_headers(headers: Mapping[str, str], methods: str) -> dict[str, str]:
    """Return the fields that answer the CORS fields of a request, if it has any (the Fetch standard, "CORS protocol").

    With them a page of a management UI transfers images. Every origin is allowed: the ticket id in the path is the
    authority, and cookies have no effect.

    `headers` are the fields of the request, by lower-case name. `methods` are those that a page may use, separated by
    commas.
    """
    answer = {}
    if "origin" in headers:
        answer["Access-Control-Allow-Origin"] = "*"
        answer["Access-Control-Expose-Headers"] = EXPOSED
    if "access-control-request-headers" in headers:
        answer["Access-Control-Allow-Headers"] = "*"
    if "access-control-request-method" in headers:
        answer["Access-Control-Allow-Methods"] = methods
    if answer:
        answer["Access-Control-Max-Age"] = MAX_AGE
    return answer


def whole_headers(ticket: Ticket) -> dict[str, str]:
    """Return the header fields of an answer with a whole image."""
    disposition = content_disposition(ticket.filename)
    return {"Accept-Ranges": "bytes", "Content-Type": BYTES, "Content-Disposition": disposition}


def content_disposition(name: str | None) -> str:
    """Return the value of the field for an image with this name, or without one. `name` has no control characters.

    A name with characters that a quoted string cannot have comes twice. First, for programs that know no extended
    values, with `_` in place of each such character; then whole, as an extended value (RFC 8187).
    """
    if not name:
        return "attachment"
    if _TOKEN.fullmatch(name):
        return f"attachment; filename={name}"
    plain = _NOT_PLAIN.sub("_", name)
    if plain == name:
        return f'attachment; filename="{name}"'
    extended = quote(name, safe=_ATTRIBUTE_SAFE)
    return f"attachment; filename=\"{plain[-MAX_FALLBACK:]}\"; filename*=UTF-8''{extended}"


def range_headers(ticket: Ticket, first: int | str, last: int | str, size: int) -> dict[str, str]:
    """Return the header fields of an answer with a range of an image of `size` bytes.

    `first` and `last` are the range's first and last byte, or placeholders for them.
    """
    return {**whole_headers(ticket), "Content-Range": f"bytes {first}-{last}/{size}"}


def encode(response: web.Response, *, close: bool, to: str = "") -> bytes:
    """Return the bytes of the answer to a request that aiohttp has not seen.

    `to` is the request's method; HEAD gets no body.
    """
    body = response.body or b""
    if not isinstance(body, bytes):
        raise TypeError("the answer is no bytes")
    head = head_template(response.status, response.headers, str(len(body)), _date(int(time.time())), close=close)
    return head if to == "HEAD" else head + body


def head_template(
    status: int,
    headers: Mapping[str, str],
    length: str,
    date: str,
    *,
    more: str = "",
    close: bool = False,
    minor: int = 1,
) -> bytes:
    """Return the bytes of an answer before its body.

    `length` and `date` are values or placeholders; `more` is a placeholder for further lines. `minor` is the minor
    version of HTTP, chosen as aiohttp does.
    """
    lines = [f"HTTP/1.{minor} {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"{more}Content-Length: {length}", f"Date: {date}", f"Server: {SERVER}"]
    lines += [f"{name}: {value}" for name, value in COMMON.items() if name not in headers]
    if close:
        lines.append("Connection: close")
    elif not minor:
        lines.append("Connection: keep-alive")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


class AnswerStream:
    """Send an answer piece by piece. Its head is sent with the first piece, so an earlier error gets its own answer.

    If the length of the body is unknown, the first piece waits for the second or the end, so that a body of one piece
    gets a Content-Length.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._first: bytes | None = None

    async def write(self, data: bytes) -> None:
        """Send the bytes. The transport refers to them until they are sent. Raises PeerGone."""
        if self._first is None and self._response.content_length is None:
            self._first = data
            return
        await self._begin()
        await _to_peer(self._response.write(data))

    async def finish(self) -> web.StreamResponse:
        """Send the rest of the body, and return the answer. The caller sends its end. Raises PeerGone."""
        if not self._response.prepared and self._response.content_length is None:
            self._response.content_length = len(self._first or b"")
        await self._begin()
        return self._response

    async def _begin(self) -> None:
        if not self._response.prepared:
            await _to_peer(self._response.prepare(self._request))
            if self._first:
                await _to_peer(self._response.write(self._first))
                self._first = b""


async def _to_peer(written: Awaitable[object]) -> None:
    try:
        with waiting(Wait.CLIENT):
            await written
    except ConnectionError as e:
        raise PeerGone("the connection was lost inside an answer") from e
