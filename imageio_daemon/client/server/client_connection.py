# SPDX-License-Identifier: Apache-2.0
"""HTTP on one blocking connection, for one thread. docs/adr/0006 has the reasons."""

import contextlib
import http.client
import socket
import time
import urllib.parse
from collections.abc import Container, Iterator, Mapping, Sequence, Sized
from email.message import Message
from typing import NamedTuple

from ...units import KiB, MiB
from ..errors import ServerFailed, Temporary
from ..stopping import Stop
from .address import Endpoint
from .answers import AnswerBody, AnswerHead, Answers, Framing
from .failures import client_refused, failure_of, not_connected
from .pace import UNLIMITED, Pace, Paced
from .secure_socket import SecureSocket
from .sending import Moved, Request, Unsent, counted, not_counted, send_all

#: Most bytes of an answer that is read as a whole, such as a list of many tickets.
MAX_ANSWER = 16 * MiB
#: Bytes of other answers that are read at a time.
PIECE = 64 * KiB
#: Most bytes of an error's reason that are read and shown.
MAX_REASON = 1000

#: Seconds without progress, while data is transferred, until a request fails.
DATA_TIMEOUT = 60.0
#: Seconds to wait for the answer to a flush, zeroing, extents or a checksum, which may take the storage long.
WORK_TIMEOUT = 3600.0


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Message
    body: bytes


class ClientConnection:
    """A connection for requests, one at a time or several ahead. After an error, the next request connects again.

    `secret` is the part of paths that is not shown, as a URL has it.
    """

    def __init__(self, endpoint: Endpoint, stop: Stop, pace: Pace = UNLIMITED, *, secret: str = "") -> None:
        self.endpoint = endpoint
        self._stop = stop
        self._paced = Paced(pace, stop)
        self._secret = secret
        self._socket: socket.socket | None = None
        self._answers: Answers | None = None
        self._unsent: Unsent | None = None
        self._ends = False  # whether the server has announced "Connection: close"
        self._tried = False
        self._was_connected = False

    def close(self) -> None:
        """Close the connection. The next request opens it again."""
        if self._answers is not None:
            self._answers.end()
            self._answers = None
        if self._socket is not None:
            self._stop.discard(self._socket)
            self._socket.close()
            self._socket = None

    def connect(self) -> None:
        """Connect, if it is not connected. Raises Temporary, ServerFailed, Stopped."""
        with self.translated():
            self._connected()

    def has_ended(self) -> bool:
        """Return whether the server has closed the connection since the last answer, as servers do with idle ones.

        Also true if the server has sent bytes without a request, because they are no answer to the next one (RFC 9112
        9.2). False if the last answer has announced the end, because then the next request connects. Do not call this
        while an answer is awaited.
        """
        sock = self._socket
        if sock is None or self._answers is None or self._ends:
            return False
        if self._answers.received():
            return True
        try:
            if isinstance(sock, SecureSocket):
                return sock.has_ended()
            sock.settimeout(0)  # the next request sets its own
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        timeout: float = DATA_TIMEOUT,
        expected: Container[int] = (200,),
    ) -> Answer:
        """Send a request and return its answer. It fails after `timeout` seconds without progress.

        Raises Refused for 4xx, StorageFailed and Temporary for 5xx, Temporary for connection failures, ServerFailed,
        Stopped.
        """
        with self.translated():
            request = Request(self.head(method, path, headers or {}, body), body or b"")
            response = self._response(method, request, timeout, expected)
            return Answer(response.status, response.headers, self._body(response))

    def ask(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a GET on a new connection, and return its answer, whatever its status. The caller reads the body.

        Reading needs translated(). Raises as connect() does.
        """
        self.close()
        with self.translated():
            return self._response("GET", Request(self.head("GET", path, headers)), DATA_TIMEOUT, range(1000))

    def stream(self, path: str, *, timeout: float) -> Iterator[bytes]:
        """Send a GET and yield its answer in pieces. Raises as request() does."""
        with self.translated():
            response = self._response("GET", Request(self.head("GET", path, {})), timeout, (200,))
            while data := response.read(PIECE):
                yield data
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)

    def upgrade(self, path: str, protocol: str) -> tuple[socket.socket, bytes]:
        """Change the connection to another protocol (RFC 9110 7.8).

        Return its socket, which close() closes, and the bytes that were received after the answer. Raises as request()
        does, and ServerFailed if the server ignores the protocol and answers in HTTP.
        """
        with self.translated():
            head = self.head("GET", path, {"Upgrade": protocol, "Connection": "Upgrade"})
            ((answer, answers),) = self._exchange([Request(head)], WORK_TIMEOUT)
            status = self._accept("GET", answer, answers, (101, 200, 206)).status
            sock = self._socket
            if status != 101 or sock is None:
                raise ServerFailed(f"{self.endpoint.peer} does not serve {protocol.upper()} on connections of HTTP")
            return sock, answers.received()

    def write(self, requests: Sequence[Request], moved: Moved) -> None:
        """Send all of the PUTs, then receive their answers. Raises as request() does."""
        started = time.monotonic()
        with self.translated(), counted(moved) as sent:
            for head, answers in self._exchange(requests, DATA_TIMEOUT, sent):
                self._require_ok("PUT", head, answers)
            if self._unsent is not None:
                self._unsent.learn(sum(request.length for request in requests), time.monotonic() - started)

    def change(self, request: Request) -> None:
        """Send a PATCH that may take the storage long. Raises as request() does."""
        with self.translated():
            for head, answers in self._exchange([request], WORK_TIMEOUT):
                self._require_ok("PATCH", head, answers)

    def read(self, requests: Sequence[Request]) -> Iterator[AnswerBody]:
        """Send all of the GETs of ranges, then yield their answers. The caller reads each to its end.

        Raises as request() does.
        """
        with self.translated():
            for head, answers in self._exchange(requests, DATA_TIMEOUT):
                framing = self._accept("GET", head, answers, (200, 206))
                yield AnswerBody(answers, head.content_range, framing.length)

    def head(self, method: str, path: str, headers: Mapping[str, str], body: Sized | None = None) -> bytes:
        """Return the head of a request."""
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        host = self.endpoint.authority
        return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n{fields}{length}\r\n".encode()

    def _response(
        self, method: str, request: Request, timeout: float, expected: Container[int]
    ) -> http.client.HTTPResponse:
        ((head, answers),) = self._exchange([request], timeout)
        self._accept(method, head, answers, expected)
        return answers.response(method, head)

    def _exchange(
        self, requests: Sequence[Request], timeout: float, moved: Moved = not_counted
    ) -> Iterator[tuple[AnswerHead, Answers]]:
        """Send requests, and yield the head of each answer. The caller reads its body before it takes the next one."""
        for number in range(len(requests)):
            left = requests[number:] if number == 0 or self._ends else []
            if number and left:  # the server has announced its last answer, and drops the requests after it
                moved(-sum(request.length for request in left))
            if left:
                answers = self._send(left, moved)
                self._timed(timeout)
            yield answers.head(), answers

    def _send(self, requests: Sequence[Request], moved: Moved) -> Answers:
        sock, answers = self._connected()
        self._timed(DATA_TIMEOUT)
        try:
            send_all(sock, requests, moved, self._paced)
        except TimeoutError:
            raise
        except OSError:
            # A server that refuses a request may answer and stop reading before it has the whole body. Sending then
            # fails, and the answer has the reason.
            pass
        return answers

    def _require_ok(self, method: str, head: AnswerHead, answers: Answers) -> None:
        """Read an answer that has to be 200, and ignore its body, for which http.client would take 0.2 ms."""
        framing = self._accept(method, head, answers, (200,))
        if framing.length is None or framing.length > PIECE:
            self._body(answers.response(method, head))
        elif missing := framing.length - len(answers.read(framing.length)):
            raise http.client.IncompleteRead(b"", missing)

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        data = response.read(MAX_ANSWER + 1)
        if len(data) > MAX_ANSWER:
            raise ServerFailed(f"{self.endpoint.peer} sent an answer of more than {MAX_ANSWER} bytes")
        if response.length:  # read() with a length does not report a truncated body
            raise http.client.IncompleteRead(data, response.length)
        return data

    def _accept(self, method: str, head: AnswerHead, answers: Answers, expected: Container[int]) -> Framing:
        framing = head.framing
        self._ends = framing.ends
        if framing.status in expected:
            return framing
        response, reason = answers.response(method, head), ""
        with contextlib.suppress(OSError, http.client.HTTPException):  # the status is enough
            reason = response.read(MAX_REASON).decode(errors="replace").partition("\n")[0]
        if reason.lstrip().startswith("<"):  # an HTML page of a proxy
            reason = response.reason
        self.close()
        raise failure_of(self.endpoint.peer, method, response, self._printable(reason))

    def _printable(self, text: str) -> str:
        """Return a server's text without the secret and control characters."""
        for secret in (self._secret, urllib.parse.unquote(self._secret)):
            if secret:
                text = text.replace(secret, "…")
        return "".join(filter(str.isprintable, text))

    def _connected(self) -> tuple[socket.socket, Answers]:
        if self._socket is not None and self._answers is not None and not self._ends:
            return self._socket, self._answers
        self.close()
        self._stop.check()
        if self._tried and self.endpoint.url is not None:
            self.endpoint = self.endpoint.url
        self._tried = True
        try:
            self._socket = sock = self.endpoint.connect()
            self._stop.add(sock)
            self.endpoint.shake_hands(sock)
        except OSError as e:
            self._stop.check()
            raise not_connected(self.endpoint.way, e, was_connected=self._was_connected) from e
        self._was_connected = True
        self._paced.limit(sock)
        self._answers, self._unsent = Answers(sock, self._paced), Unsent(sock)
        self._ends = False
        return sock, self._answers

    def _timed(self, timeout: float) -> None:
        """Set the longest wait for the peer. A change costs two system calls."""
        if self._socket is not None and self._socket.gettimeout() != timeout:
            self._socket.settimeout(timeout)

    def _reason(self, error: Exception) -> str:
        """Say how the connection has failed."""
        peer = self.endpoint.peer
        if isinstance(error, http.client.IncompleteRead):
            return f"{peer} cut the transfer off{f', {left} bytes before the end' if (left := error.expected) else ''}"
        if isinstance(error, TimeoutError):
            return f"the connection to {peer} does not answer"
        return f"the connection to {peer} broke: {self._printable(str(error).strip())}"

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Close the connection after any error, and raise Temporary for errors of the connection."""
        try:
            yield
        except (OSError, http.client.HTTPException) as e:
            self.close()
            self._stop.check()
            raise client_refused(self.endpoint.peer, e) or Temporary(self._reason(e)) from e
        except BaseException:
            self.close()
            raise
