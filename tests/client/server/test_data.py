# SPDX-License-Identifier: Apache-2.0
"""Requests for data that go before the answers to those before them."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import pytest

from imageio_daemon.client.errors import Refused, ServerFailed, Temporary
from imageio_daemon.client.server import data
from imageio_daemon.client.server.address import Endpoint, ImageUrl
from imageio_daemon.client.server.data import Piece, Range
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.server.restarts import Restarts
from imageio_daemon.client.server.retries import Retries
from imageio_daemon.client.stopping import Stop
from tests.examples.programs import TIMEOUT, answer

DONE = answer("200 OK")
PIECES = [Piece(offset, memoryview(b"%04d" % offset)) for offset in range(0, 800, 100)]
RANGES = [Range(offset, 4) for offset, _ in PIECES]


class Server:
    """A server that receives so many requests, and then sends answers, again and again; b"": it closes instead."""

    def __init__(self, *turns: tuple[int, Sequence[bytes]]) -> None:
        self.requests: list[list[str]] = []
        self._turns = turns
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(TIMEOUT)
        self._listener.close()

    def image(self, retry_for: float = 0) -> RemoteImage:
        url = ImageUrl.parse(f"http://127.0.0.1:{self._listener.getsockname()[1]}/images/some-ticket")
        return RemoteImage(url, Endpoint(url.peer, url.host, url.port), Stop(), retry_for, Restarts(), Retries())

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        for count, answers in self._turns:
            self.requests.append(self._receive(connection, count))
            connection.sendall(b"".join(answers))
            if answers[-1] == b"" or b"Connection: close" in answers[-1]:
                self._drain(connection)
                if (count, answers) != self._turns[-1]:
                    connection, _ = self._listener.accept()
        self._drain(connection)

    def _receive(self, connection: socket.socket, count: int) -> list[str]:
        """Receive requests, whose bodies have 4 bytes, and return their ranges."""
        received = b""
        while len(found := re.findall(rb"Range: bytes[ =](\d+)-.*\r\n(?:.*\r\n)*?\r\n", received)) < count:
            received += (more := connection.recv(65536))
            assert more
        return [each.decode() for each in found]

    def _drain(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # a client that does not read all
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    """Start a server, and wait for its end."""
    started: list[Server] = []

    def start(*turns: tuple[int, Sequence[bytes]]) -> Server:
        started.append(Server(*turns).__enter__())
        return started[-1]

    yield start
    for each in started:
        each.__exit__(None, None, None)


def part(offset: int, body: bytes | None = None, told: int | None = None) -> bytes:
    start = offset if told is None else told
    content = b"%04d" % offset if body is None else body
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\nContent-Range: bytes {start}-{start + 3}/1000\r\n\r\n"
    return head.encode() + content


PARTS = [part(offset) for offset, _ in RANGES]


def read(image: RemoteImage) -> list[tuple[int, bytes]]:
    return [(offset, bytes(piece)) for offset, piece in image.read(RANGES, memoryview(bytearray(64)))]


def everything() -> list[tuple[int, bytes]]:
    return [(offset, bytes(piece)) for offset, piece in PIECES]


def test_short_pieces_are_sent_before_their_answers(server: Callable[..., Server]) -> None:
    image = server((8, [DONE] * 8)).image()
    image.write(PIECES)
    image.close()


def test_short_ranges_are_requested_before_their_answers(server: Callable[..., Server]) -> None:
    image = server((8, PARTS)).image()
    assert read(image) == everything()
    image.close()


def test_no_more_than_a_number_of_requests_wait_for_answers(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "AHEAD", 3)
    started = server((3, [DONE] * 3), (3, [DONE] * 3), (2, [DONE] * 2), (3, PARTS[:3]), (3, PARTS[3:6]), (2, PARTS[6:]))
    image = started.image()
    image.write(PIECES)
    assert read(image) == everything()
    image.close()
    assert [len(each) for each in started.requests] == [3, 3, 2, 3, 3, 2]


def test_long_answers_are_requested_one_after_the_other(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "READ_AHEAD", 8)
    started = server(*((2, PARTS[first : first + 2]) for first in range(0, 8, 2)))
    image = started.image()
    assert read(image) == everything()
    image.close()


def test_refusal_of_one_request_ends_all(server: Callable[..., Server]) -> None:
    started = server((8, [DONE, DONE, answer("416 Range Not Satisfiable", "too far\n")]))
    with pytest.raises(Refused, match=r"PUT: 416 too far"):
        started.image().write(PIECES)


def test_after_a_failure_each_request_waits_for_the_answer_to_the_one_before(server: Callable[..., Server]) -> None:
    started = server((8, [DONE, DONE, b""]), *((1, [DONE]) for _ in PIECES))
    moved: list[int] = []
    image = started.image(retry_for=TIMEOUT)
    image.write(PIECES, moved.append)
    image.close()
    assert started.requests[1:] == [[str(offset)] for offset, _ in PIECES]
    assert sum(moved) == 32


def test_read_goes_on_behind_what_came_before_a_failure(server: Callable[..., Server]) -> None:
    half = part(200, b"02")
    rest = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\nContent-Range: bytes 202-203/1000\r\n\r\n00"
    started = server((8, [*PARTS[:2], half, b""]), (1, [rest]), (5, PARTS[3:]))
    image = started.image(retry_for=TIMEOUT)
    assert b"".join(piece for _, piece in read(image)) == b"".join(piece for _, piece in everything())
    image.close()
    assert started.requests[1][0] == "202"


def test_what_is_behind_the_last_answer_of_a_connection_goes_over_the_next(server: Callable[..., Server]) -> None:
    last = answer("200 OK", "", "Connection: close")
    started = server((8, [DONE, last]), (6, [DONE] * 6))
    moved: list[int] = []
    image = started.image()
    image.write(PIECES, moved.append)
    image.close()
    assert started.requests[1] == [str(offset) for offset, _ in PIECES[2:]]
    assert sum(moved) == 32


def test_answer_that_no_request_has_asked_for_is_taken_for_none() -> None:
    """RFC 9112 9.2."""
    asked: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            connection.sendall(DONE + DONE)
            other, _ = listener.accept()
            with other:
                asked.append(other.recv(65536))
                other.sendall(DONE)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT)
        thread = threading.Thread(target=serve)
        thread.start()
        url = ImageUrl.parse(f"http://127.0.0.1:{listener.getsockname()[1]}/images/some-ticket")
        image = RemoteImage(url, Endpoint(url.peer, url.host, url.port), Stop(), 0, Restarts(), Retries())
        image.write(PIECES[:1])
        image.write(PIECES[1:2])
        image.close()
        thread.join(TIMEOUT)
    assert len(asked) == 2


def test_another_range_than_asked_for_is_told(server: Callable[..., Server]) -> None:
    image = server((8, [PARTS[0], part(100, told=200)])).image()
    with pytest.raises(ServerFailed, match="another range"):
        read(image)


@pytest.mark.parametrize(
    "odd",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + DONE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        answer("200 OK", "x" * 100_000),
        answer("200 OK", "a few words"),
        answer("200 OK", "", "DATE: today"),
    ],
    ids=["continue", "chunked", "long", "short", "other case"],
)
def test_answer_of_any_form_is_read_to_its_end(server: Callable[..., Server], odd: bytes) -> None:
    image = server((8, [odd, *[DONE] * 7]), (8, PARTS)).image()
    image.write(PIECES)
    assert read(image) == everything()
    image.close()


@pytest.mark.parametrize(
    "bad",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 200 + b"\r\n",
    ],
    ids=["body", "head", "status", "line", "fields"],
)
def test_answer_that_is_no_answer_breaks_the_connection(server: Callable[..., Server], bad: bytes) -> None:
    image = server((8, [DONE, bad, b""])).image()
    with pytest.raises(Temporary, match=r"broke|cut the transfer off, 2 bytes before the end"):
        image.write(PIECES)
