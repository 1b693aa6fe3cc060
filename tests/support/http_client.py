# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 client for tests. Requests are bytes, and answers are parsed strictly.

It sends requests that a client library would repair or refuse (in pieces, with two lengths, with a body that is too
short), and finds faults of answers (a missing length, bytes after the end).
"""

import contextlib
import json
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

#: Longest silence of a server that works, in seconds.
TIMEOUT = 20.0

#: More than any answer's head may have.
MAX_HEAD = 64 * 1024

_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9][0-9]) ([ -~]*)")
_REQUEST_LINE = re.compile(rb"(OPTIONS|GET|HEAD|PUT|PATCH|DELETE|POST) ([!-~]+) HTTP/1\.[01]\r\n")
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")

#: Statuses whose answers have no body (RFC 9110 6.4.1).
_NO_BODY = frozenset((204, 304))


class ProtocolError(AssertionError):
    """The server sent something that is not HTTP."""


class DisconnectedError(Exception):
    """The server closed the connection before the answer was complete. `received` has the bytes that came."""

    def __init__(self, received: bytes) -> None:
        super().__init__(f"connection closed after {len(received)} bytes: {received[:200]!r}")
        self.received = received


class Headers:
    """The fields of an answer, found by name without regard to case."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise AssertionError(f"no {name} in {self.fields}")
        return value

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __repr__(self) -> str:
        return repr(self.fields)

    def get(self, name: str) -> str | None:
        """Return the value of a field that may come once, or None."""
        values = [value for key, value in self.fields if key.lower() == name.lower()]
        if len(values) > 1:
            raise ProtocolError(f"{name} came {len(values)} times: {values}")
        return values[0] if values else None


@dataclass(frozen=True)
class Answer:
    """One complete answer."""

    status: int
    version: str
    headers: Headers
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def closes(self) -> bool:
        """Whether the server says that it closes the connection."""
        return (self.headers.get("Connection") or "").lower() == "close"

    @property
    def code(self) -> str:
        """The code of an error."""
        return self.headers["X-Error-Code"]

    def json(self) -> Any:
        assert self.headers["Content-Type"].startswith("application/json")
        return json.loads(self.body)


def encode_request(
    method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """Return the bytes of a request. Adds Host, and Content-Length if there is a body, unless they are given."""
    fields = dict(headers or {})
    given = {name.lower() for name in fields}
    if "host" not in given:
        fields = {"Host": "localhost"} | fields
    if body is not None and not given & {"content-length", "transfer-encoding"}:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + (body or b"")


class Description(Protocol):
    """A description with which answers are compared; see tests/support/openapi.py."""

    def check(self, method: str, target: str, answer: Answer) -> None:
        """Raise an AssertionError unless the answer is as described."""


class Connection:
    """A connection to a server, closed at the end of the `with` block.

    Answers to requests that this object has sent as a whole are compared with the `description`.
    """

    def __init__(self, sock: socket.socket, description: Description | None = None) -> None:
        self.sock = sock
        self._received = bytearray()
        self._description = description
        self._asked: deque[tuple[str, str]] = deque()  # methods and targets

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Requests

    def request(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """Send one request and return its answer."""
        self.send(encode_request(method, target, headers, body))
        return self.receive(to=method)

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", target, headers)

    def put(self, target: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("PUT", target, headers, body)

    def put_at(self, target: str, offset: int, body: bytes) -> Answer:
        """Write at an offset, as all clients do."""
        return self.put(target, body, {"Content-Range": f"bytes {offset}-{offset + len(body) - 1}/*"})

    def patch(self, target: str, operation: object) -> Answer:
        """Send a PATCH with a JSON document."""
        return self.request("PATCH", target, {"Content-Type": "application/json"}, json.dumps(operation).encode())

    def send(self, data: bytes) -> None:
        if asked := _REQUEST_LINE.match(data):
            self._asked.append((asked[1].decode(), asked[2].decode()))
        self.sock.sendall(data)

    def send_while_accepted(self, data: bytes) -> int:
        """Send all, or until the server does not read for a second or is gone. Return how many bytes it took."""
        sent = 0
        self.sock.settimeout(1)
        try:
            while sent < len(data):
                sent += self.sock.send(data[sent : sent + 65536])
        except (TimeoutError, ConnectionError, ssl.SSLError):
            pass
        finally:
            self.sock.settimeout(TIMEOUT)
        return sent

    # Answers

    def receive(self, *, to: str = "GET") -> Answer:
        """Return the next answer, to a request with the method `to`. Raises DisconnectedError if it is not complete."""
        head = bytes(self._until(b"\r\n\r\n"))
        status_line, *lines = head[:-4].split(b"\r\n")
        match = _STATUS_LINE.fullmatch(status_line)
        if not match:
            raise ProtocolError(f"bad status line {status_line!r}")
        fields = []
        for line in lines:
            field = _FIELD_LINE.fullmatch(line)
            if not field:
                raise ProtocolError(f"bad field line {line!r}")
            fields.append((field[1].decode(), field[2].decode()))
        headers, status = Headers(fields), int(match[2])
        if status >= 400 and headers.get("Server") == "imageio-daemon" and "X-Error-Code" not in headers:
            raise ProtocolError(f"an error {status} without a code: {headers}")
        body = b"" if to == "HEAD" or status < 200 else self._body(status, headers, len(head))
        answer = Answer(status, match[1].decode(), headers, body)
        if status >= 200 and self._asked:
            asked = self._asked.popleft()
            if self._description is not None:
                self._description.check(*asked, answer)
        return answer

    def status_or_end(self, *, to: str = "GET") -> int | None:
        """Return the status of the next answer, or None if the server closes without an answer."""
        try:
            return self.receive(to=to).status
        except DisconnectedError as e:
            if e.received:
                raise
            return None

    def _body(self, status: int, headers: Headers, head: int) -> bytes:
        if headers.get("Transfer-Encoding") == "chunked":
            return self._chunks()
        length = headers.get("Content-Length")
        if status == 304 and length is None:  # it would be the length of the body that is not sent (RFC 9110 8.6)
            return b""
        if length is None:
            raise ProtocolError(f"an answer {status} without a length: {headers}")
        if status in _NO_BODY and length != "0":
            raise ProtocolError(f"an answer {status} with a body")
        return bytes(self._exactly(int(length)))

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._until(b"\r\n")[:-2], 16):
            body += self._exactly(size)
            if self._exactly(2) != b"\r\n":
                raise ProtocolError("a chunk does not end where it should")
        if self._until(b"\r\n") != b"\r\n":
            raise ProtocolError("trailers after the last chunk")
        return bytes(body)

    def _until(self, end: bytes) -> bytearray:
        while (at := self._received.find(end)) < 0:
            if len(self._received) > MAX_HEAD:
                raise ProtocolError("a line without end")
            self._more()
        return self._take(at + len(end))

    def _exactly(self, count: int) -> bytearray:
        while len(self._received) < count:
            self._more()
        return self._take(count)

    def _take(self, count: int) -> bytearray:
        taken = self._received[:count]
        del self._received[:count]
        return taken

    def _more(self) -> None:
        try:
            data = self.sock.recv(256 * 1024)
        except (ConnectionError, ssl.SSLError):
            data = b""  # a reset ends the connection like any other end
        if not data:
            raise DisconnectedError(bytes(self._received))
        self._received += data

    # State of the connection

    def is_silent(self, timeout: float = 0.2) -> bool:
        """Return whether neither an answer nor the end of the connection comes within the timeout."""
        if self._received:
            return False
        # Not select(), because TLS has messages that are not data, such as session tickets.
        self.sock.settimeout(timeout)
        try:
            self._more()
        except TimeoutError:
            return True
        except DisconnectedError:
            return False
        finally:
            self.sock.settimeout(TIMEOUT)
        return False

    def is_closed(self, timeout: float = TIMEOUT) -> bool:
        """Return whether the server closes the connection within `timeout` seconds. Bytes before that are an error."""
        self.sock.settimeout(timeout)
        try:
            data = bytes(self._received) or self.sock.recv(1)
        except TimeoutError:
            return False
        except (ConnectionError, ssl.SSLError):
            return True
        finally:
            with contextlib.suppress(OSError):
                self.sock.settimeout(TIMEOUT)
        if data:
            raise ProtocolError(f"{data!r} where the end of the connection was expected")
        return True

    def end_sending(self) -> None:
        """End sending, as a client that stops in the middle does. Answers can still be read."""
        # Of the TCP connection only, because SSLSocket.shutdown() would drop the session's keys for reading.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_WR)

    def drain(self) -> bytes:
        """Return all bytes that come until the server closes."""
        with contextlib.suppress(DisconnectedError):
            while True:
                self._more()
        return bytes(self._take(len(self._received)))

    def reset(self) -> None:
        """Reset the TCP connection, as after a crash of the client."""
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.sock.close()

    def close(self) -> None:
        self.sock.close()


def connect_unix(address: str, *, timeout: float = TIMEOUT) -> socket.socket:
    """Connect to a unix socket: a path, or an abstract name with its leading NUL."""
    return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), address, timeout)


def connect_tcp(host: str, port: int, *, timeout: float = TIMEOUT) -> socket.socket:
    """Connect to a server without TLS."""
    sock, address = _tcp_socket(host, port)
    return _connected(sock, address, timeout)


def connect_tls(host: str, port: int, context: ssl.SSLContext, *, timeout: float = TIMEOUT) -> socket.socket:
    """Connect to a TLS server and verify its certificate."""
    sock, address = _tcp_socket(host, port)
    # A socket that is wrapped before it connects stays ours. A connection that the server resets before
    # wrap_socket() looks at it is left to the garbage collector (Python 3.11).
    return _connected(context.wrap_socket(sock, server_hostname=host), address, timeout)


def _tcp_socket(host: str, port: int) -> tuple[socket.socket, Any]:
    """Return an unconnected socket for an address of a server, and that address. Prefers IPv4."""
    family, kind, protocol, _, address = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    sock = socket.socket(family, kind, protocol)
    # Tests send small pieces on purpose, and these must leave at once.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, address


def _connected(sock: socket.socket, address: Any, timeout: float) -> socket.socket:
    try:
        sock.settimeout(timeout)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock
