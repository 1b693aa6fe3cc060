# SPDX-License-Identifier: Apache-2.0
"""Connections, the aiohttp lane and the server around them, on a socket pair and with resources made for the test."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine

from imageio_daemon.errors import NotFound
from imageio_daemon.frontends.http import server as http_server
from imageio_daemon.frontends.http.connection.connection import ServerConnection
from imageio_daemon.frontends.http.connection.incoming import HEAD_READ
from imageio_daemon.frontends.http.headers import MAX_JSON
from imageio_daemon.frontends.http.request import READ_BUFFER, RequestBody, name_of, read_json
from imageio_daemon.frontends.http.responses import AnswerStream
from imageio_daemon.frontends.http.routes import Handler, Resource, Routes
from imageio_daemon.frontends.http.server import SCRATCH, HttpServer
from imageio_daemon.net import connection_limit
from imageio_daemon.net.connection_limit import ConnectionLimit, Stage
from imageio_daemon.units import KiB, MiB
from tests.support.polling import eventually_async

#: Longest wait for anything that must happen, in seconds.
SOON = 10.0
#: Bytes of each piece of an answer.
PART = 256 * KiB
#: Inactivity timeout of servers whose timers are tested, in seconds.
SHORT = 0.2


class Service:
    """What the test's resource does: `handle` answers everything below /x/."""

    def __init__(self) -> None:
        self.handle: Handler = self._echo
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        self.ended: str = ""

    def routes(self) -> Routes:
        methods = ("GET", "HEAD", "PUT", "DELETE")
        resource = Resource(dict.fromkeys(methods, self._answer), methods, cors=("GET",))
        return Routes({"/x/{}": resource, "/y/{}": replace(resource, cors=None)})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return await self.handle(request)

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        body, received = RequestBody(request), bytearray()
        while not body.ended:
            received += await body.read()
        return web.Response(body=f"{request.method} {name_of(request)} ".encode() + received)

    async def stuck(self, _: web.Request) -> web.StreamResponse:
        self.entered.set()
        try:
            await self.leave.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "answered"
        return web.Response(body=b"done")

    async def unread(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=b"not interested")


class Client:
    """The other end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def receive(self) -> bytes:
        """Return all until the server closes."""
        async with asyncio.timeout(SOON):
            while data := await asyncio.get_running_loop().sock_recv(self._sock, MiB):
                self._received += data
        return self._received

    async def receive_until(self, end: bytes) -> bytes:
        async with asyncio.timeout(SOON):
            while end not in self._received:
                data = await asyncio.get_running_loop().sock_recv(self._sock, MiB)
                assert data, f"closed after {self._received!r}"
                self._received += data
        return self._received

    def end(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()


class Server:
    def __init__(self, service: Service, *, timeout: float = 60, most: int = 10) -> None:
        self.limit = ConnectionLimit(most)
        self.http = HttpServer(service.routes(), inactivity_timeout=timeout, limit=self.limit)
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(self.http.connection, theirs)
        client = Client(ours)
        self._clients.append(client)
        return client

    @property
    def connections(self) -> list[ServerConnection]:
        """What it has at the other ends."""
        return cast(list[ServerConnection], list(self.http.admission._connections))

    def show_ticket(self) -> None:
        """Count all connections as those that have shown one."""
        for connection in self.connections:
            connection._place.know(lambda: True)

    async def stop(self) -> None:
        for client in self._clients:
            client.close()
        await self.http.stop(SOON)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def server(service: Service) -> AsyncIterator[Server]:
    server = Server(service)
    await server.http.start()
    yield server
    await server.stop()


@pytest.fixture
async def impatient(service: Service) -> AsyncIterator[Server]:
    server = Server(service, timeout=SHORT)
    await server.http.start()
    yield server
    await server.stop()


def get(name: str = "a", *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} /x/{name} HTTP/{version}", "Host: x", *fields]).encode() + b"\r\n\r\n"


def put(name: str, body: bytes, *fields: str) -> bytes:
    return get(name, f"Content-Length: {len(body)}", *fields, method="PUT") + body


CLOSE = "Connection: close"


# Requests in order


@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_pipelined_requests_are_answered_in_order(server: Server, step: int) -> None:
    chunked = get("e", "Transfer-Encoding: chunked", method="PUT") + b"2\r\nxy\r\n0\r\n\r\n"
    data = put("a", b"12345") + get("b") + b"\r\n" + get("d", method="BREW") + put("c", b"xy") + chunked
    client = await server.connect()
    for i in range(0, len(data), step):
        await client.send(data[i : i + step])
    answers = await client.receive()
    found = [answers.find(text) for text in (b"PUT a 12345", b"GET b ", b" 405 ", b"PUT c xy", b"PUT e xy")]
    assert found == sorted(found)
    assert found[0] > 0
    assert answers.count(b"HTTP/1.1 ") == 5


async def test_requests_behind_a_running_one_are_not_read_into_memory(server: Server, service: Service) -> None:
    service.handle = service.stuck
    client = await server.connect()
    await client.send(get("a"))
    await service.entered.wait()
    sending = asyncio.create_task(client.send(get("b") * 1_000_000))
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    (connection,) = server.connections
    assert len(connection._incoming.ahead) <= 8192
    sending.cancel()
    service.leave.set()


async def test_refused_requests_are_not_answered_faster_than_they_are_read(server: Server) -> None:
    client = await server.connect()
    sending = asyncio.create_task(client.send(get("b", method="BREW") * 1_000_000))
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    sending.cancel()


async def test_refused_requests_are_not_read_faster_than_they_are_answered(server: Server) -> None:
    client = await server.connect()
    sending = asyncio.create_task(client.send(get("b", method="BREW") * 3000 + get("b", CLOSE)))
    answering = asyncio.create_task(client.receive())
    most = 0
    while not answering.done():
        await asyncio.sleep(0)
        most = max([most, *(len(connection._incoming.ahead) for connection in server.connections)])
    await sending
    assert (await answering).count(b" 405 ") == 3000
    assert most <= 2 * 8192


async def test_half_closed_client_is_told_of_each_refusal(server: Server) -> None:
    client = await server.connect()
    await client.send(get("b", method="BREW") * 300)
    client.end()
    assert (await client.receive()).count(b" 405 ") == 300


async def test_old_client_is_answered_and_closed(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", version="1.0"))
    assert (await client.receive()).endswith(b"GET a ")


async def test_old_client_may_ask_to_keep_the_connection(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", "Connection: keep-alive", version="1.0"))
    assert b"connection: keep-alive" in (await client.receive_until(b"GET a ")).lower()
    await client.send(get("b", version="1.0"))
    assert (await client.receive()).endswith(b"GET b ")


# What is refused before it is handed on


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /x/a HTTP/1.1\n", 400),
        (get("a", "Content-Length: 1", "Content-Length: 1"), 400),
        (get("a", "X: " + "y" * 20000), 431),
        (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (get("%ff"), 400),
    ],
)
async def test_malformed_request_is_told_and_the_connection_ends(server: Server, data: bytes, status: int) -> None:
    client = await server.connect()
    await client.send(data)
    if status == 400 and b"Host" in data and b"Length" not in data:
        client.end()  # a well-formed request of nonsense: the connection stays usable
    answer = await client.receive()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1


async def test_unknown_method_keeps_the_connection(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", method="BREW") + get("b", CLOSE))
    answers = await client.receive()
    assert b" 405 " in answers
    assert answers.endswith(b"GET b ")


@pytest.mark.parametrize("target", ["/", "http://host", "/x/a%0A"])
async def test_head_of_what_is_not_handed_on_gets_no_body(server: Server, target: str) -> None:
    client = await server.connect()
    head = f"HEAD {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    await client.send(head + get("b", CLOSE))
    answers = await client.receive()
    assert answers.partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 200 ")
    assert answers.endswith(b"GET b ")


async def test_target_without_a_path_is_not_found_and_keeps_the_connection(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a").replace(b"/x/a", b"http://host") + get("b", CLOSE))
    answers = await client.receive()
    assert answers.startswith(b"HTTP/1.1 404 ")
    assert answers.endswith(b"GET b ")


@pytest.mark.parametrize("fields", ["", "Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n0\r\n"])
async def test_options_of_the_server_need_no_path(server: Server, fields: str) -> None:
    client = await server.connect()
    await client.send(f"OPTIONS * HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
    head = await client.receive_until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nAllow: OPTIONS,GET,HEAD,PUT,DELETE\r\nContent-Length: 0\r\n")


async def test_options_of_the_server_keep_the_connection(server: Server) -> None:
    client = await server.connect()
    await client.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n" + get("b", CLOSE))
    assert (await client.receive()).endswith(b"GET b ")


async def test_only_options_are_of_the_server(server: Server) -> None:
    client = await server.connect()
    await client.send(b"GET * HTTP/1.1\r\nHost: x\r\n\r\n" + get("b", CLOSE))
    answers = await client.receive()
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.endswith(b"GET b ")


async def test_path_may_have_an_escaped_line_feed(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a%0ab") + get("c", CLOSE))
    answers = await client.receive()
    assert b"GET a\nb" in answers
    assert answers.endswith(b"GET c ")


# Bodies


async def test_unread_body_ends_the_connection_and_the_answer_arrives(server: Server, service: Service) -> None:
    service.handle = service.unread
    client = await server.connect()
    await client.send(put("a", bytes(20 * MiB)))
    answer = await client.receive()
    assert answer.endswith(b"not interested")
    assert b"Connection: close" in answer


async def test_body_cut_by_a_half_close_is_told(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", "Content-Length: 10", method="PUT") + b"123")
    client.end()
    assert (await client.receive()).startswith(b"HTTP/1.1 400 ")


async def test_half_closed_client_is_answered(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a") + get("b"))
    client.end()
    assert (await client.receive()).endswith(b"GET b ")


async def test_body_in_chunks_is_whole_though_its_client_sends_no_more(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", "Transfer-Encoding: chunked", method="PUT") + b"2\r\nxy\r\n0\r\n\r\n")
    client.end()
    assert (await client.receive()).endswith(b"PUT a xy")


async def test_broken_chunk_is_told(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", "Transfer-Encoding: chunked", method="PUT") + b"2\r\nabc\r\n")
    assert (await client.receive()).startswith(b"HTTP/1.1 400 ")


async def test_continue_is_sent_when_the_body_is_wanted(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", "Content-Length: 3", "Expect: 100-continue", CLOSE, method="PUT"))
    assert await client.receive_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(b"abc")
    assert (await client.receive()).endswith(b"PUT a abc")


async def test_continue_is_not_sent_to_a_client_of_http_1_0(server: Server) -> None:
    client = await server.connect()
    await client.send(b"PUT /x/a HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    await client.send(b"abc")
    answer = await client.receive()
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 "))
    assert answer.endswith(b"PUT a abc")


async def test_continue_is_not_sent_when_it_is_not(server: Server, service: Service) -> None:
    service.handle = service.unread
    client = await server.connect()
    await client.send(get("a", "Content-Length: 3", "Expect: 100-continue", method="PUT"))
    assert (await client.receive()).startswith(b"HTTP/1.1 200 ")


async def test_body_that_nobody_reads_is_not_collected(server: Server, service: Service) -> None:
    service.handle = service.stuck
    client = await server.connect()
    sending = asyncio.create_task(client.send(put("a", bytes(64 * MiB))))
    await service.entered.wait()
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    (connection,) = server.connections
    assert connection._exchange.received <= HEAD_READ + SCRATCH + 2 * READ_BUFFER
    sending.cancel()
    service.leave.set()


async def read_as_json(request: web.Request) -> web.Response:
    return web.Response(body=f"read {await read_json(request)}"[:100].encode())


async def test_json_comes_in_pieces(server: Server, service: Service) -> None:
    service.handle = read_as_json
    client = await server.connect()
    for piece in (get("a", "Content-Length: 8", CLOSE, method="PUT"), b'{"a"', b": 1", b"}"):
        await client.send(piece)
        await asyncio.sleep(0)
    assert (await client.receive()).endswith(b"read {'a': 1}")


async def test_json_may_be_as_large_as_the_limit(server: Server, service: Service) -> None:
    service.handle = read_as_json
    client = await server.connect()
    await client.send(put("a", b'"' + b"x" * (MAX_JSON - 2) + b'"', CLOSE))
    assert (await client.receive()).endswith(b"read " + b"x" * 95)


async def test_announced_json_that_is_too_large_is_not_read(server: Server, service: Service) -> None:
    service.handle = read_as_json
    client = await server.connect()
    await client.send(get("a", f"Content-Length: {MAX_JSON + 1}", method="PUT"))
    assert (await client.receive()).startswith(b"HTTP/1.1 413 ")


async def test_json_that_becomes_too_large_is_refused(server: Server, service: Service) -> None:
    service.handle = read_as_json
    client = await server.connect()
    chunk = b"%x\r\n" % (MAX_JSON + 1) + b" " * (MAX_JSON + 1) + b"\r\n"
    await client.send(get("a", "Transfer-Encoding: chunked", method="PUT") + chunk)
    assert (await client.receive()).startswith(b"HTTP/1.1 413 ")


# Streams


def streaming(*pieces: bytes, length: int | None = None, error: Exception | None = None) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = length
        if request.method == "HEAD":
            return response
        stream = AnswerStream(request, response)
        for piece in pieces:
            await stream.write(piece)
        if error is not None:
            raise error
        return await stream.finish()

    return handle


async def test_stream_of_known_length_is_sent(server: Server, service: Service) -> None:
    service.handle = streaming(bytes(MiB), bytes(MiB), length=2 * MiB)
    client = await server.connect()
    await client.send(get("a", CLOSE))
    head, _, body = (await client.receive()).partition(b"\r\n\r\n")
    assert b"Content-Length: 2097152" in head
    assert body == bytes(2 * MiB)


async def test_stream_of_one_piece_has_a_length(server: Server, service: Service) -> None:
    service.handle = streaming(b"all")
    client = await server.connect()
    await client.send(get("a", CLOSE))
    head, _, body = (await client.receive()).partition(b"\r\n\r\n")
    assert b"Content-Length: 3" in head
    assert body == b"all"


async def test_longer_stream_of_unknown_length_comes_in_chunks(server: Server, service: Service) -> None:
    service.handle = streaming(b"one", b"two")
    client = await server.connect()
    await client.send(get("a", CLOSE))
    head, _, body = (await client.receive()).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_longer_stream_of_unknown_length_ends_with_the_connection_of_an_old_client(
    server: Server, service: Service
) -> None:
    service.handle = streaming(b"one", b"two")
    client = await server.connect()
    await client.send(get("a", "Connection: keep-alive", version="1.0"))
    head, _, body = (await client.receive()).partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert body == b"onetwo"


async def test_slow_reader_is_written_no_more_than_a_part_ahead(server: Server, service: Service) -> None:
    service.handle = streaming(*[bytes(PART)] * 64, length=64 * PART)
    client = await server.connect()
    await client.send(get("a"))
    (connection,) = server.connections
    await eventually_async(lambda: connection._transport.writing_paused)
    assert connection._transport.asyncio_transport.get_write_buffer_size() <= PART


@pytest.mark.parametrize("length", [0, None])
async def test_stream_of_nothing_is_empty(server: Server, service: Service, length: int | None) -> None:
    service.handle = streaming(length=length)
    client = await server.connect()
    await client.send(get("a", CLOSE))
    assert b"Content-Length: 0\r\n" in await client.receive()


async def test_head_has_the_length_and_no_body(server: Server, service: Service) -> None:
    service.handle = streaming(b"never", length=5)
    client = await server.connect()
    await client.send(get("a", CLOSE, method="HEAD"))
    answer = await client.receive()
    assert b"Content-Length: 5\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_stream_that_fails_before_its_first_byte_is_an_error(server: Server, service: Service) -> None:
    service.handle = streaming(length=5, error=NotFound("no such thing"))
    client = await server.connect()
    await client.send(get("a", CLOSE))
    answer = await client.receive()
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.endswith(b"no such thing\n")


@pytest.mark.parametrize("length", [10, None])
async def test_stream_that_fails_later_is_cut(server: Server, service: Service, length: int | None) -> None:
    service.handle = streaming(b"one", b"two", length=length, error=NotFound("x"))
    client = await server.connect()
    await client.send(get("a"))
    answer = await client.receive()
    assert b"two" in answer
    assert not answer.endswith(b"0\r\n\r\n")
    assert b"404" not in answer


async def test_empty_answer_of_204_has_a_length(server: Server, service: Service) -> None:
    async def deleted(_: web.Request) -> web.Response:
        return web.Response(status=204)

    service.handle = deleted
    client = await server.connect()
    await client.send(get("a", CLOSE, method="DELETE"))
    assert b"Content-Length: 0\r\n" in await client.receive()


# Pages of other origins


async def test_errors_are_readable_for_other_origins(server: Server, service: Service) -> None:
    service.handle = streaming(length=5, error=NotFound("x"))
    for request in (get("a", "Origin: https://ui", CLOSE), get("a", "Origin: https://ui", CLOSE, method="POST")):
        client = await server.connect()
        await client.send(request)
        assert b"Access-Control-Allow-Origin: *" in await client.receive()


async def test_resource_that_is_not_for_pages_says_nothing(server: Server) -> None:
    client = await server.connect()
    await client.send(get("a", "Origin: https://ui", CLOSE).replace(b"/x/", b"/y/"))
    assert b"Access-Control-Allow-Origin" not in await client.receive()


# Faults


async def test_bug_is_answered_and_logged_without_the_path(
    server: Server, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async def bug(_: web.Request) -> web.Response:
        raise KeyError("oops")

    service.handle = bug
    client = await server.connect()
    with caplog.at_level(logging.DEBUG):
        await client.send(get("secret", CLOSE))
        assert (await client.receive()).startswith(b"HTTP/1.1 500 ")
    assert "KeyError: 'oops'" in caplog.text
    assert "secret" not in caplog.text


async def test_client_that_vanishes_ends_its_request(server: Server, service: Service) -> None:
    service.handle = service.stuck
    client = await server.connect()
    await client.send(put("a", b"unread"))
    await service.entered.wait()
    client.close()
    async with asyncio.timeout(SOON):
        while not service.ended:
            await asyncio.sleep(0)
    assert service.ended == "cancelled"


def test_requests_that_aiohttp_cannot_parse_are_logged_without_their_text() -> None:
    error = BadStatusLine("GET /images/secret")
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "Error", (), (BadStatusLine, error, None))
    assert http_server._Quiet().filter(record)
    assert record.levelno == logging.DEBUG
    assert record.exc_info is None


def test_bugs_in_aiohttp_keep_their_traceback() -> None:
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "Error", (), (KeyError, KeyError("x"), None))
    assert http_server._Quiet().filter(record)
    assert (record.levelno, bool(record.exc_info)) == (logging.ERROR, True)


# Limits


async def test_connection_past_the_limit_is_told(service: Service) -> None:
    server = Server(service, most=1)
    await server.http.start()
    first = await server.connect()
    server.show_ticket()
    second = await server.connect()
    assert (await second.receive()).startswith(b"HTTP/1.1 503 ")
    await first.send(get("a", CLOSE))
    assert (await first.receive()).endswith(b"GET a ")
    second.close()
    third = await server.connect()
    await third.send(get("b", CLOSE))
    assert (await third.receive()).endswith(b"GET b ")
    await server.stop()


async def test_oldest_connection_without_a_ticket_is_closed_for_a_new_one(service: Service) -> None:
    server = Server(service, most=1)
    await server.http.start()
    first, second = await server.connect(), await server.connect()
    assert await first.receive() == b""
    await second.send(get("a", CLOSE))
    assert (await second.receive()).endswith(b"GET a ")
    await server.stop()


async def test_connections_that_are_refused_are_limited(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MAX_REFUSED", 2)
    server = Server(service, most=1)
    await server.http.start()
    await server.connect()
    server.show_ticket()
    refused = [await server.connect() for _ in range(4)]
    for client in refused:
        assert (await client.receive()).startswith(b"HTTP/1.1 503 ")
    assert len(server.limit._strangers[Stage.REFUSED]) == 2
    await server.stop()


# Timers


async def test_silent_connection_is_closed(impatient: Server) -> None:
    assert await (await impatient.connect()).receive() == b""


async def test_half_a_head_is_not_waited_for(impatient: Server) -> None:
    client = await impatient.connect()
    await client.send(b"GET /x/")
    assert await client.receive() == b""


async def test_idle_connection_is_closed(impatient: Server) -> None:
    client = await impatient.connect()
    await client.send(get("a"))
    assert (await client.receive()).endswith(b"GET a ")


async def test_body_that_stops_is_cut(impatient: Server) -> None:
    client = await impatient.connect()
    await client.send(get("a", "Content-Length: 5", method="PUT") + b"123")
    assert await client.receive() == b""


async def test_slow_server_is_not_the_clients_silence(impatient: Server, service: Service) -> None:
    service.handle = service.stuck
    client = await impatient.connect()
    await client.send(get("a", CLOSE))
    loop = asyncio.get_running_loop()
    loop.call_later(4 * SHORT, service.leave.set)
    assert (await client.receive()).endswith(b"done")


async def test_client_that_does_not_read_is_cut(impatient: Server, service: Service) -> None:
    service.handle = streaming(*[bytes(PART)] * 64, length=64 * PART)
    client = await impatient.connect()
    await client.send(get("a"))
    async with asyncio.timeout(SOON):
        while impatient.http.admission.count:
            await asyncio.sleep(0.01)
    assert len(await client.receive()) < 64 * MiB


# The end


async def test_stop_closes_idle_connections_and_lets_requests_end(service: Service) -> None:
    server = Server(service)
    await server.http.start()
    idle, running = await server.connect(), await server.connect()
    service.handle = service.stuck
    await running.send(get("a"))
    await service.entered.wait()
    stopping = asyncio.create_task(server.http.stop(SOON))
    assert await idle.receive() == b""
    late = await server.connect()
    assert (await late.receive()).startswith(b"HTTP/1.1 503 ")
    assert not stopping.done()
    service.leave.set()
    answer = await running.receive()
    assert b"Connection: close" in answer
    assert answer.endswith(b"done")
    await stopping
    for client in (idle, running, late):
        client.close()


async def test_stop_of_a_server_that_was_idle_before_lets_requests_end(service: Service) -> None:
    server = Server(service)
    await server.http.start()
    before = await server.connect()
    before.end()
    assert await before.receive() == b""
    running = await server.connect()
    service.handle = service.stuck
    await running.send(get("a"))
    await service.entered.wait()
    stopping = asyncio.create_task(server.http.stop(SOON))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    service.leave.set()
    assert (await running.receive()).endswith(b"done")
    await stopping
    for client in (before, running):
        client.close()


async def test_stop_cuts_what_does_not_end(service: Service) -> None:
    server = Server(service)
    await server.http.start()
    client = await server.connect()
    service.handle = service.stuck
    await client.send(get("a"))
    await service.entered.wait()
    await server.http.stop(0.05)
    assert service.ended == "cancelled"
    assert await client.receive() == b""
    client.close()


def test_server_that_was_not_started_makes_no_handlers(service: Service) -> None:
    http = HttpServer(service.routes(), inactivity_timeout=1, limit=ConnectionLimit(1))
    with pytest.raises(RuntimeError):
        http.connection()._shared.make_handler()
