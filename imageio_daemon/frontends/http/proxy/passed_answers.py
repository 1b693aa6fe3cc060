# SPDX-License-Identifier: Apache-2.0
"""Answers of the other server, as the client gets them: only known statuses and fields, and no secret.

No text of theirs goes into the log, because it may quote the url, which is a secret.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from aiohttp import web

from ....transfers.ticket import Access, Ticket
from ....units import MiB
from ..errors import CODE, code_of
from ..responses import BYTES, text_response
from .way import ProxiedAnswer, Way

#: Most bytes of an answer that is neither an image nor extents. The largest tells what differs after a finalize of 60
#: GiB.
MAX_ANSWER = 1 * MiB
#: Fields that are passed on. This server makes those of a connection (RFC 9110 7.6.1), of CORS and of the server.
PASSED = ("Content-Type", "ETag", "Retry-After", "Accept-Encoding", "Allow", CODE)
#: Statuses of success that are passed on, and errors that are not: they ask this server, not its client, for
#: credentials.
_SUCCESS = (200, 202, 204, 206)
_NOT_OURS = (401, 407)

#: Content-Range of an answer (RFC 9110 14.4). For requests, see headers.py.
_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19})")

#: Keys that are passed on unchanged, to all clients and to those that may write.
_OPTIONS_PASSED = ("zero_state", "finalized", "instance")
_PASSED_TO_WRITERS = ("available",)
#: Features that are not passed on: lists of digests, which come while the image is read, NBD, which is not HTTP, and
#: qcow2 files, which the other server would make.
NOT_PASSED = ("checksum_blocks", "nbd", "qcow2")


class AnsweredRange(NamedTuple):
    """A Content-Range. An answer without a range has neither `first` nor `last`. `total` is the image's size."""

    first: int | None
    last: int | None
    total: int


def range_of(answer: ProxiedAnswer, way: Way) -> AnsweredRange:
    """Return the Content-Range of an answer. Raises WayGone if there is none, or if it is malformed."""
    found = parse_answered_range(answer.headers.get("Content-Range", ""))
    if found is None:
        raise way.gone("no valid Content-Range")
    return found


def parse_answered_range(text: str) -> AnsweredRange | None:
    """Return the values of an answer's Content-Range (RFC 9110 14.4), or None if it is malformed."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = (None if text is None else int(text) for text in match.groups()[:2])
    return AnsweredRange(first, last, int(match[3]))


def require_known(answer: ProxiedAnswer, way: Way) -> None:
    """Raise WayGone unless a client of the images API may get this answer to the request."""
    status = answer.status
    if status not in _SUCCESS and (not 400 <= status < 600 or status in _NOT_OURS):
        raise way.gone(f"status {status}")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise way.gone("an encoded body, which was not asked for")


async def read_whole(answer: ProxiedAnswer, way: Way) -> bytes:
    """Return the body of an answer. Raises WayGone if it is larger than MAX_ANSWER."""
    body = bytearray()
    async for data in answer.pieces():
        body += data
        if len(body) > MAX_ANSWER:
            raise way.gone(f"an answer of more than {MAX_ANSWER} bytes")
    return bytes(body)


async def passed(answer: ProxiedAnswer, way: Way, size: int) -> web.Response:
    """Return the answer for the client, whose ticket allows `size` bytes. Raises WayGone.

    Replaces a body that quotes the other server's ticket id.
    """
    require_known(answer, way)
    fields = {name: answer.headers[name] for name in PASSED if name in answer.headers}
    body = await read_whole(answer, way)
    if answer.status >= 400:
        fields.setdefault(CODE, code_of(answer.status))
    if answer.status == 416 and "Content-Range" in answer.headers:
        fields["Content-Range"] = f"bytes */{min(size, range_of(answer, way).total)}"
    if answer.status >= 400 and _quotes(body, way.address.ticket_id):
        fields.pop("Content-Type", None)
        response = text_response(answer.status, "The server that has the image refuses the request", fields)
    else:
        typed = {"Content-Type": BYTES} if body else {}
        response = web.Response(status=answer.status, headers=typed | fields, body=body or None)
    if answer.is_last:
        response.force_close()
    return response


def _quotes(body: bytes, ticket_id: str) -> bool:
    return ticket_id.encode() in body or unquote_to_bytes(ticket_id) in body


def tag_of(answer: ProxiedAnswer) -> dict[str, str]:
    """Return the field ETag of an answer; empty if it has none."""
    return {"ETag": answer.headers["ETag"]} if "ETag" in answer.headers else {}


def tells_range(response: web.Response, asked: Mapping[str, object]) -> bool:
    """Return whether the JSON document of an answer has the offset and the length that were `asked` for."""
    try:
        told = json.loads(response.body) if isinstance(response.body, bytes) else None
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and all(told.get(key) == asked[key] for key in ("offset", "length") if key in asked)


# The answer to OPTIONS (docs/images-api.md): what the other server can do, as far as the ticket allows it.


def options_of(text: bytes, way: Way) -> dict[str, object]:
    """Return the document of an answer to OPTIONS. Raises WayGone if it is not a JSON object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise way.gone("OPTIONS without a JSON object")
    return document


def names(document: dict[str, object], key: str, way: Way) -> list[str]:
    """Return the list of names under a key, empty if there is no such key. Raises WayGone if it is no list of names."""
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise way.gone(f"OPTIONS with invalid {key}")
    return value


def translated(
    document: dict[str, object], ticket: Ticket, most: int, reads: Iterable[str], way: Way
) -> dict[str, object]:
    """Return the document for the client. `most` is how many connections this daemon recommends.

    `reads` are the features of tickets that only read. The other server's unix socket is left out, because it is on
    that server's host. Raises WayGone.
    """
    writable = ticket.may(Access.WRITE)
    features = names(document, "features", way)
    answer: dict[str, object] = {
        "features": [each for each in features if each not in NOT_PASSED and (writable or each in reads)],
        "max_readers": _number(document, "max_readers", most, way),
        "max_writers": _number(document, "max_writers", most, way),
    }
    if ticket.declared_size is None or "max_size" in document:
        answer["max_size"] = _number(document, "max_size", ticket.size, way)
    answer["fast_zero"] = writable and document.get("fast_zero") is True
    passed = _OPTIONS_PASSED + (_PASSED_TO_WRITERS if writable else ())
    answer |= {key: document[key] for key in passed if key in document}
    if writable:
        answer["encodings"] = names(document, "encodings", way)
    return answer


def _number(document: dict[str, object], key: str, most: int, way: Way) -> int:
    value = document.get(key, most)
    if type(value) is not int or value < 0:
        raise way.gone(f"OPTIONS with an invalid {key}")
    return min(value, most)
