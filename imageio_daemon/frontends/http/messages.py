# SPDX-License-Identifier: Apache-2.0
"""Requests and answers as the handlers see them: no server, no socket."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from ...errors import TooLarge
from ...pipeline import ByteSink
from ...transfers import Transfer
from ...units import KiB
from .headers import MAX_JSON, parse_json

JSON = "application/json"
TEXT = "text/plain; charset=UTF-8"
BYTES = "application/octet-stream"

#: What the Server header says: no versions, which help only those who look for holes.
SERVER = "imageio-daemon"
#: In each answer: a browser must not take the bytes of an image for a page (the Fetch standard).
SAFE = {"X-Content-Type-Options": "nosniff"}

#: Most bytes of one write: until they are sent, their cipher text exists beside the operation's buffers, twice. 64 TLS
#: downloads at once through aiohttp: 1 MiB pieces peaked at 425 MiB RSS, these at 363, as fast.
WRITE_PIECE = 256 * KiB

Stream = Callable[[ByteSink], Awaitable[None]]


class Body(Protocol):
    """A request's body, read once from its beginning."""

    @property
    def ended(self) -> bool:
        """Tell whether all of it was read; true when there is none."""
        ...

    async def readinto(self, view: memoryview) -> int:
        """Put at least one byte into the view and return how many; 0 at the end. Raises PeerGone, InvalidRequest.

        The first call sends 100 Continue to a client that waits for it.
        """
        ...


class Client(Protocol):
    """The connection that a request came on."""

    @property
    def peer(self) -> str:
        """Return a name for the log."""
        ...

    @property
    def must_close(self) -> bool:
        """Tell whether the answer that is given now is the connection's last."""
        ...

    def use(self, transfer: Transfer) -> None:
        """Count the connection as one of the transfer's, and live by its timeout. Raises TooManyConnections."""
        ...


@dataclass
class Request:
    """One request. `headers` by lower-case or any-case name; `length` is Content-Length, None without one."""

    method: str
    path: list[str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    length: int | None
    chunked: bool
    body: Body
    client: Client
    #: The ticket id or other name inside the path, and the path without it, for the log; set by the routes.
    name: str = ""
    resource: str = ""

    @property
    def waits_for_continue(self) -> bool:
        """Tell whether the client sends its body only when it is told to (RFC 9110 10.1.1)."""
        return self.headers.get("expect", "").lower() == "100-continue"

    async def read_json(self) -> object:
        """Return the body's JSON document. Raises TooLarge, InvalidRequest, Truncated, PeerGone."""
        if (self.length or 0) > MAX_JSON:
            raise TooLarge(f"The body is larger than {MAX_JSON} bytes")
        view = memoryview(bytearray(MAX_JSON + 1))
        filled = 0
        while not self.body.ended:
            filled += await self.body.readinto(view[filled:])
            if filled > MAX_JSON:
                raise TooLarge(f"The body is larger than {MAX_JSON} bytes")
        return parse_json(bytes(view[:filled]))


@dataclass
class Response:
    """One answer: a body of bytes, or a stream of `length` bytes (None: nobody knows yet).

    With a length and no stream, whoever made the answer sends its body.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Stream | None = None
    length: int | None = None
    close: bool = False

    @property
    def content_length(self) -> int | None:
        """Return what Content-Length says; None: there cannot be one."""
        return len(self.body) if self.stream is None and self.length is None else self.length


class Answer(ByteSink, Protocol):
    """One answer on its way to the client, through either lane; as a sink, its body.

    The head goes out with the first bytes of the body, so that what fails before them is answered as an error.
    """

    @property
    def started(self) -> bool:
        """Tell whether something of it was sent."""
        ...

    async def plain(self, response: Response, *, close: bool) -> None:
        """Send an answer that is no stream, or to HEAD all but the bytes of one that is."""
        ...

    def expect(self, response: Response, *, close: bool) -> None:
        """Get ready to be the sink of the answer's stream."""
        ...

    async def finish(self) -> None:
        """Send the end of the answer, and the head if there was no body."""
        ...

    def cut(self) -> None:
        """End the connection in the middle: the client must see that this is not the image."""
        ...


def text_response(status: int, reason: str, headers: dict[str, str] | None = None, *, close: bool = False) -> Response:
    """Return an answer of one line of text, whatever the reason holds."""
    line = "".join(c if c.isprintable() else "?" for c in reason)
    return Response(
        status, {"Content-Type": TEXT, **(headers or {})}, f"{line}\n".encode("utf-8", "replace"), close=close
    )


def encode(response: Response, *, close: bool) -> bytes:
    """Return the wire form of an answer that is no stream."""
    return encode_head(response, close=close) + response.body


def encode_done(*, close: bool) -> bytes:
    """Return the wire form of an answer that says only that all went well."""
    return _encode_done(int(time.time()), close)


@lru_cache(maxsize=2)  # of one second
def _encode_done(_: int, close: bool) -> bytes:
    return encode(Response(), close=close)


def encode_head(response: Response, *, close: bool) -> bytes:
    """Return the wire form of an answer of known length, up to its body."""
    return head_template(response, str(response.content_length), _date(int(time.time())), close=close)


def head_template(response: Response, length: str, date: str, *, close: bool = False) -> bytes:
    """Return the same with whatever stands for the length and the date."""
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Content-Length: {length}", f"Date: {date}", f"Server: {SERVER}"]
    lines += [f"{name}: {value}" for name, value in SAFE.items()]
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def preflight(methods: tuple[str, ...]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of OPTIONS that tells only which methods there are."""

    async def options(_: Request) -> Response:
        return Response(200, {"Allow": ",".join(methods)})

    return options
