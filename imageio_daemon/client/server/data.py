# SPDX-License-Identifier: Apache-2.0
"""The requests that move data. Short ones are sent before the answers to earlier ones (docs/adr/0038)."""

import http.client
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...units import MiB
from ..errors import ServerFailed
from ..file_part import FilePart
from .answers import AnswerBody
from .client_connection import ClientConnection
from .sending import Moved, Request

#: Most requests of one connection that are sent before their answers. The answers have at most 16 KiB, which any socket
#: takes.
AHEAD = 64
#: Most bytes of answers to GETs that are sent together: about as many as sockets take while the client writes.
READ_AHEAD = 1 * MiB


class Piece(NamedTuple):
    """Bytes for the image, from an offset on."""

    offset: int
    data: memoryview


class FilePiece(NamedTuple):
    """A range of a local file, for the image from an offset on."""

    offset: int
    data: FilePart


class Encoded(NamedTuple):
    """A piece, and its data in a coding that the server knows, with the coding's name."""

    piece: Piece
    encoding: str
    body: bytes


class Range(NamedTuple):
    """A range of the image, in bytes."""

    offset: int
    length: int

    def __str__(self) -> str:
        """Return the range as in Range and Content-Range (RFC 9110 14.2, 14.4)."""
        return f"{self.offset}-{self.offset + self.length - 1}"


def first(ranges: Iterable[Range], *, alone: bool) -> list[Range]:
    """Return the first ranges, to request together, or with `alone` only the first one."""
    chosen: list[Range] = []
    size = 0
    for each in ranges:
        size += each.length
        if chosen and (alone or size > READ_AHEAD or len(chosen) == AHEAD):
            break
        chosen.append(each)
    return chosen


def plain(pieces: Iterable[Piece | FilePiece | Encoded]) -> list[Piece | FilePiece | Encoded]:
    """Return the pieces without their codings."""
    return [piece.piece if isinstance(piece, Encoded) else piece for piece in pieces]


def put(
    connection: ClientConnection,
    path: str,
    pieces: Sequence[Piece | FilePiece | Encoded],
    *,
    alone: bool,
    moved: Moved,
) -> None:
    """Write pieces of data. With `alone`, send each request after the answer to the one before it.

    Raises as request() does.
    """
    requests = [_put(connection, path, piece) for piece in pieces]
    step = 1 if alone else AHEAD
    for start in range(0, len(requests), step):
        connection.write(requests[start : start + step], moved)


def get(
    connection: ClientConnection,
    path: str,
    ranges: Sequence[Range],
    buffer: memoryview,
    moved: Moved,
    size: int | None = None,
) -> Iterator[Piece]:
    """Read ranges, and yield pieces in the buffer. Raises as request() does.

    `size` is the image's size, which no answer may contradict, or None if it is unknown. A piece is valid until the
    next one is requested. The last piece before a failure may be shorter than the buffer.
    """
    requests = [Request(connection.head("GET", path, {"Range": f"bytes={each}"})) for each in ranges]
    bodies = connection.read(requests)
    try:
        # bodies comes first, so that it runs to its end, after the last answer
        for body, each in zip(bodies, ranges, strict=True):
            _check(connection, body, each, size)
            with connection.translated():
                yield from _received(body, each.offset, buffer, moved)
    except BaseException:
        connection.close()  # not all answers were read
        raise


def _put(connection: ClientConnection, path: str, piece: Piece | FilePiece | Encoded) -> Request:
    headers = {"Content-Type": "application/octet-stream"}
    data: memoryview | FilePart
    body: bytes | memoryview | FilePart
    if isinstance(piece, Encoded):
        (offset, data), headers["Content-Encoding"], body = piece
    else:
        offset, data = piece
        body = data
    headers["Content-Range"] = f"bytes {Range(offset, len(data))}/*"
    return Request(connection.head("PUT", f"{path}?flush=n", headers, body), body, len(data))


def _check(connection: ClientConnection, body: AnswerBody, wanted: Range, size: int | None) -> None:
    told, _, total = body.content_range.partition("/")
    if told != f"bytes {wanted}" or body.length != wanted.length:
        raise ServerFailed(f"{connection.endpoint.peer} sent another range than asked for")
    if size is not None and total.isdecimal() and total != str(size):
        raise ServerFailed(
            f"the image at {connection.endpoint.peer} had {size} bytes, and has another size now: "
            "start anew when nobody changes it"
        )


def _received(body: AnswerBody, offset: int, buffer: memoryview, moved: Moved) -> Iterator[Piece]:
    length = body.length or 0
    for position in range(0, length, len(buffer)):
        piece = buffer[: length - position]
        try:
            body.read_into(piece, moved)
        except (OSError, http.client.HTTPException):
            if body.filled:
                yield Piece(offset + position, piece[: body.filled])  # progress, even if every connection breaks
            raise
        yield Piece(offset + position, piece)
