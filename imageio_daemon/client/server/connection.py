# SPDX-License-Identifier: Apache-2.0
"""HTTP on one blocking connection, used by one thread. The reasons are in docs/adr/0006."""

import contextlib
import http.client
import socket
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from typing import NamedTuple, TypeAlias

from ...units import KiB, MiB
from ..errors import ServerFailed, Temporary
from .address import Endpoint, is_same_host
from .failures import failure_of
from .secure_socket import SecureSocket
from .stopping import Stop

#: Longest answer that is read as a whole, in bytes: a list of many tickets.
MAX_ANSWER = 16 * MiB
#: Bytes to read at a time of other answers.
PIECE = 64 * KiB
#: Bytes of an error's reason that are read and shown.
MAX_REASON = 1000

#: Seconds without progress, while data is transferred, until a request fails.
DATA_TIMEOUT = 60.0
#: Seconds to wait for the answer to a flush, zeroing, extents or a checksum, which may take the storage long.
WORK_TIMEOUT = 3600.0

#: Called with the number of bytes of a body that have gone or come, as they do; less than 0 takes back what has to go
#: again.
Moved: TypeAlias = Callable[[int], None]


def not_counted(count: int) -> None:
    """Do nothing with a number of bytes that have moved."""


class Scaled:
    """Tell of bytes of an encoded body as of those that it stands for: `length` for all of its `encoded` bytes."""

    def __init__(self, moved: Moved, length: int, encoded: int) -> None:
        self._moved = moved
        self._length = length
        self._encoded = encoded
        self._count = 0

    def __call__(self, count: int) -> None:
        """Tell of the bytes, so that all that is told adds up."""
        before = self._count * self._length // self._encoded
        self._count += count
        self._moved(self._count * self._length // self._encoded - before)


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Message
    body: bytes


class ClientConnection:
    """A connection for requests, one at a time. After an error the next request connects again."""

    def __init__(self, endpoint: Endpoint, stop: Stop) -> None:
        self.endpoint = endpoint
        self._stop = stop
        self._http: _HTTPConnection | None = None
        self._secret = ""
        self._socket: socket.socket | None = None  # http.client drops its own after "Connection: close"
        self._response: http.client.HTTPResponse | None = None  # the last one; its file keeps the descriptor open
        self._tried = False
        self._was_connected = False

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._response is not None:
            self._response.close()
            self._response = None
        if self._socket is not None:
            self._stop.discard(self._socket)
            self._socket.close()
            self._socket = None

    def connect(self) -> None:
        """Connect, if it is not connected. Raises Temporary, ServerFailed, Stopped."""
        with self.translated():
            self._connected()

    def has_ended(self) -> bool:
        """Tell whether the server has closed the connection since the last answer, as it does with one that is idle.

        No answer may be awaited. An end that the last answer has announced is none: the next request connects.
        """
        sock = self._socket
        if sock is None or self._http is None or self._http.sock is None:
            return False
        try:
            if isinstance(sock, SecureSocket):
                return sock.has_ended()
            sock.settimeout(0)  # the next request sets its own
            return len(sock.recv(1, socket.MSG_PEEK)) == 0
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_same_host(self) -> bool:
        """Connect, and tell whether the server is on this host. Raises Temporary, ServerFailed, Stopped."""
        with self.translated():
            _, sock = self._connected()
            return self.endpoint.proxy is None and is_same_host(sock)

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        timeout: float = DATA_TIMEOUT,
        expected: tuple[int, ...] = (200,),
        moved: Moved = not_counted,
    ) -> Answer:
        """Send a request and return its answer. timeout: seconds without progress until it fails. moved: of the body.

        Raises Refused for 4xx, StorageFailed and Temporary for 5xx, Temporary for connection failures, ServerFailed,
        Stopped.
        """
        with self.translated(), _counted(moved) as sent:
            response = self._exchange(method, path, headers or {}, body, timeout, expected, sent)
            data = response.read(MAX_ANSWER + 1)
            if len(data) > MAX_ANSWER:
                raise ServerFailed(f"{self.endpoint.peer} sent an answer of more than {MAX_ANSWER} bytes")
            if response.length:  # read() with a length does not report a truncated body
                raise http.client.IncompleteRead(data, response.length)
            return Answer(response.status, response.headers, data)

    def stream(self, path: str, *, timeout: float) -> Iterator[bytes]:
        """Send a GET and yield its answer in pieces. Raises as request() does."""
        with self.translated():
            response = self._exchange("GET", path, {}, None, timeout, (200,))
            while data := response.read(PIECE):
                yield data
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)

    def open(self, path: str, headers: Mapping[str, str]) -> "Body":
        """Send a GET for a range and return the answer, whose body the caller reads. Raises as request() does."""
        with self.translated():
            return Body(self, self._exchange("GET", path, headers, None, DATA_TIMEOUT, (200, 206)))

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | memoryview | None,
        timeout: float,
        expected: tuple[int, ...],
        moved: Moved = not_counted,
    ) -> http.client.HTTPResponse:
        self._secret = path.partition("?")[0].split("/")[2]
        http_connection, sock = self._connected()
        sock.settimeout(DATA_TIMEOUT)
        try:
            with _full_packets(sock):
                length = {} if body is None else {"Content-Length": str(len(body))}
                http_connection.request(method, path, headers={**headers, **length})
                _send(sock, memoryview(body or b""), moved)
        except TimeoutError:
            raise
        except OSError:
            # A server that refuses a request may answer and stop reading before it has the whole body. Then sending
            # fails, and the answer has the reason.
            pass
        sock.settimeout(timeout)
        self._response = response = http_connection.getresponse()
        if response.status in expected:
            return response
        reason = response.read(MAX_REASON).decode(errors="replace").partition("\n")[0]
        self.close()
        raise failure_of(self.endpoint.peer, method, response, self._printable(reason))

    def _printable(self, text: str) -> str:
        """Return a server's text without the ticket's id and without control characters."""
        for secret in (self._secret, urllib.parse.unquote(self._secret)):
            if secret:
                text = text.replace(secret, "…")
        return "".join(filter(str.isprintable, text))

    def _connected(self) -> "tuple[_HTTPConnection, socket.socket]":
        if self._http is not None and self._socket is not None and self._http.sock is not None:
            return self._http, self._socket
        self.close()  # the old socket, if the server has announced "Connection: close"
        self._stop.check()
        sock = self._connect()
        self._http = _HTTPConnection(self.endpoint, sock)
        return self._http, sock

    def _connect(self) -> socket.socket:
        if self._tried and self.endpoint.url is not None:
            self.endpoint = self.endpoint.url
        self._tried = True
        try:
            self._socket = sock = self.endpoint.connect()
            self._stop.add(sock)
            self.endpoint.shake_hands(sock)
            self._was_connected = True
        except OSError as e:
            self._stop.check()
            # A name that was known is one that nobody can be asked for while the network is away.
            failure = ServerFailed if _is_final(e) and not self._was_connected else Temporary
            raise failure(f"can't connect to {self.endpoint.way}: {e.strerror or e}") from e
        return sock

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Close the connection after any error, and raise Temporary for those of the connection."""
        try:
            yield
        except (OSError, http.client.HTTPException) as e:
            self.close()
            self._stop.check()
            what = "does not answer" if isinstance(e, TimeoutError) else f"broke: {self._printable(str(e).strip())}"
            raise Temporary(f"the connection to {self.endpoint.peer} {what}") from e
        except BaseException:
            self.close()
            raise


class Body:
    """The body of the answer to a GET for a range. The caller reads it to its end."""

    def __init__(self, connection: ClientConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.content_range = response.headers["Content-Range"] or ""
        self.length = response.length
        self.filled = 0
        self._left = response.length or 0

    def read_into(self, buffer: memoryview, moved: Moved) -> None:
        """Fill the buffer. Raises Temporary if the connection ends before; `filled` has the bytes received."""
        self.filled = 0
        with self._connection.translated():
            while self.filled < len(buffer):
                # HTTPResponse.readinto() returns when the buffer is full, and a slow link takes long to fill it.
                count = self._response.fp.readinto1(buffer[self.filled :])
                if count == 0:
                    peer, left = self._connection.endpoint.peer, self._left
                    raise Temporary(f"{peer} cut the transfer off, {left} bytes before the end of a range")
                self.filled += count
                self._left -= count
                moved(count)

    def end(self) -> None:
        """Finish the answer after its last byte, so that the connection can be used for the next request."""
        with self._connection.translated():
            self._response.length = self._left
            self._response.read()


class _HTTPConnection(http.client.HTTPConnection):
    """HTTP on a connected socket; it does not connect by itself."""

    sock: socket.socket | None
    auto_open = 0

    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        super().__init__(endpoint.host, endpoint.port or None)
        self.sock = sock


def _is_final(error: OSError) -> bool:
    """Tell whether a retry would fail, too: the host does not exist, or the path of a socket is too long."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    return error.errno is None and not isinstance(error, TimeoutError)


def _send(sock: socket.socket, data: memoryview, moved: Moved) -> None:
    """Send a body. The timeout of the socket is that of each call, and not of the whole: a link may be slow."""
    while data:
        count = sock.send(data)
        moved(count)
        data = data[count:]


@contextlib.contextmanager
def _counted(moved: Moved) -> Iterator[Moved]:
    """Count what moves in the block, and take it back if the block raises."""
    total = 0

    def count(number: int) -> None:
        nonlocal total
        total += number
        moved(number)

    try:
        yield count
    except BaseException:
        moved(-total)
        raise


@contextlib.contextmanager
def _full_packets(sock: socket.socket) -> Iterator[None]:
    """Let the kernel send full packets only (TCP_CORK, tcp(7)): OpenSSL writes each record of 16 KiB separately.

    Processor seconds for 1 GiB over TLS on one host, client and server: 1.75 + 1.77, without it 1.85 + 1.97.
    """
    if not isinstance(sock, SecureSocket):
        yield
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    yield
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
