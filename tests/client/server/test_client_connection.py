# SPDX-License-Identifier: Apache-2.0
"""Answers of servers that do not end as they should, and connections that end then."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from imageio_daemon.client import ServerFailed, Temporary
from imageio_daemon.client.server.address import Endpoint, ImageUrl
from imageio_daemon.client.server.client_connection import MAX_ANSWER, PIECE, ClientConnection
from imageio_daemon.client.server.sending import Request
from imageio_daemon.client.stopping import Stop
from tests.examples.programs import ScriptedServer, answer, features


@contextmanager
def connected(*answers: bytes) -> Iterator[tuple[ClientConnection, str]]:
    """A connection to a server that gives these answers, and the path of an image there."""
    with ScriptedServer(*answers) as server:
        url = ImageUrl.parse(server.url)
        connection = ClientConnection(Endpoint(url.peer, url.host, url.port), Stop())
        yield connection, url.path
        connection.close()


def test_connection_is_closed_at_once_after_an_answer_that_is_cut_off() -> None:
    """Its last answer has the descriptor, too, and the error the answer."""
    with connected(features(), answer("200 OK", "[]", "Connection: close")[:-1]) as (connection, path):
        connection.request("OPTIONS", path)
        sock: socket.socket | None = connection._socket
        with pytest.raises(Temporary, match=r"cut the transfer off, [0-9]+ bytes before the end") as error:
            connection.request("GET", path)
        assert sock is not None
        assert sock.fileno() == -1
        assert error.tb is not None


def test_answer_of_unknown_length_that_is_cut_off_tells_no_number() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"
    with connected(chunked) as (connection, path), pytest.raises(Temporary, match=r"cut the transfer off$"):
        connection.request("GET", path)


@pytest.mark.parametrize("size", [b"-1", b"-5"])
def test_chunk_of_less_than_no_bytes_is_an_error(size: bytes) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\nabc"
    with connected(chunked) as (connection, path), pytest.raises(Temporary, match=r"a chunk of less than no bytes$"):
        connection.request("GET", path)


@pytest.mark.parametrize("length", [10, PIECE + 1])
def test_change_whose_answer_is_cut_off_is_not_known_to_be_done(length: int) -> None:
    with (
        connected(answer("200 OK", "x" * length)[:-1]) as (connection, path),
        pytest.raises(Temporary, match="cut the transfer off, 1 bytes before the end"),
    ):
        connection.change(Request(connection.head("PATCH", path, {}, b"{}"), b"{}"))


def test_change_whose_answer_has_no_end_is_an_error() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_ANSWER + 1)
    with (
        connected(endless) as (connection, path),
        pytest.raises(ServerFailed, match=f"more than {MAX_ANSWER} bytes"),
    ):
        connection.change(Request(connection.head("PATCH", path, {}, b"{}"), b"{}"))


def test_status_counts_without_its_whole_reason() -> None:
    chunked = b"HTTP/1.1 500 Internal Server Error\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"
    with connected(chunked) as (connection, path), pytest.raises(Temporary) as error:
        connection.change(Request(connection.head("PATCH", path, {}, b"{}"), b"{}"))
    assert error.value.http_status == 500
