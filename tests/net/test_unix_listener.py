# SPDX-License-Identifier: Apache-2.0
"""A listener is found, and does not notice."""

import errno
import secrets
import socket
from pathlib import Path

import pytest

from imageio_daemon.net.listening import why_no_listener


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "a socket") if request.param == "path" else f"@a socket {secrets.token_hex(4)}"


def bound(address: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
    return sock


def test_listener_is_found_and_gets_no_connection(address: str) -> None:
    with bound(address) as server:
        server.listen()
        server.setblocking(False)
        assert why_no_listener(address) == 0
        with pytest.raises(BlockingIOError):
            server.accept()


def test_address_that_nobody_has_any_more_is_told(address: str) -> None:
    bound(address).close()
    assert why_no_listener(address) == errno.ECONNREFUSED


def test_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert why_no_listener(str(tmp_path / "none")) == errno.ENOENT


def test_socket_of_another_type_is_no_listener(tmp_path: Path) -> None:
    with bound(str(tmp_path / "socket"), socket.SOCK_DGRAM):
        assert why_no_listener(str(tmp_path / "socket")) == errno.EPROTOTYPE


def test_path_that_is_too_long_is_told(tmp_path: Path) -> None:
    assert why_no_listener("/" + 200 * "x") == errno.EINVAL
