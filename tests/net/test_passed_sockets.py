# SPDX-License-Identifier: Apache-2.0
"""Sockets that the service manager has passed: which are used, and what becomes of the others."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from imageio_daemon.net.listening import listen_tcp, listen_unix
from imageio_daemon.net.passed_sockets import Fits, PassedSockets, is_abstract, is_tcp, is_unix
from imageio_daemon.runtime.systemd import Passed
from tests.support.manager import Manager


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def take(sock: socket.socket, fits: Fits, *, name: str = "remote") -> bool:
    """Tell whether the socket is taken as that of the remote service."""
    with sock:
        passed = PassedSockets([Passed(name, os.dup(sock.fileno()))])
        taken = passed.take("remote", fits)
        passed.drop_rest()
        if taken is None:
            return False
        with taken:
            assert not taken.getblocking()
            assert taken.getsockname() == sock.getsockname()
        return True


def test_tcp_socket_of_the_address_is_taken() -> None:
    sock = listen_tcp("127.0.0.1", 0)
    assert take(sock, is_tcp("127.0.0.1", sock.getsockname()[1]))


def test_any_port_will_do_if_any_is_configured() -> None:
    assert take(listen_tcp("::1", 0), is_tcp("::1", 0))


def test_blocking_socket_is_made_non_blocking() -> None:
    sock = listen_tcp("127.0.0.1", 0)
    sock.setblocking(True)
    assert take(sock, is_tcp("127.0.0.1", 0))


@pytest.mark.parametrize(
    ("host", "other"), [("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "::1"), ("127.0.0.1", "no.such.host.invalid")]
)
def test_tcp_socket_of_another_host_is_not_taken(host: str, other: str) -> None:
    assert not take(listen_tcp(host, 0), is_tcp(other, 0))


def test_tcp_socket_of_another_port_is_not_taken() -> None:
    sock = listen_tcp("127.0.0.1", 0)
    assert not take(sock, is_tcp("127.0.0.1", sock.getsockname()[1] ^ 1))


def test_socket_of_another_service_is_not_taken() -> None:
    assert not take(listen_tcp("127.0.0.1", 0), is_tcp("127.0.0.1", 0), name="nbd")


def test_socket_that_does_not_listen_is_not_taken(cleanup: ExitStack) -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    assert not take(sock, is_tcp("127.0.0.1", 0))


def test_datagram_socket_is_not_taken() -> None:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    assert not take(sock, is_tcp("127.0.0.1", 0))


def test_unix_socket_of_the_path_and_mode_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert take(listen_unix(path, 0o600), is_unix(path, 0o600))


def test_unix_socket_of_another_path_is_not_taken(tmp_path: Path) -> None:
    assert not take(listen_unix(str(tmp_path / "s"), 0o600), is_unix(str(tmp_path / "t"), 0o600))


def test_unix_socket_of_another_mode_is_not_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert not take(listen_unix(path, 0o600), is_unix(path, 0o666))


@pytest.mark.parametrize("replacement", [None, b""])
def test_unix_socket_whose_path_is_gone_is_not_taken(tmp_path: Path, replacement: bytes | None) -> None:
    path = tmp_path / "s"
    sock = listen_unix(str(path), 0o600)
    path.unlink()
    if replacement is not None:
        path.write_bytes(replacement)
    assert not take(sock, is_unix(str(path), 0o600))


def test_unix_socket_is_no_tcp_socket(tmp_path: Path) -> None:
    assert not take(listen_unix(str(tmp_path / "s"), 0o600), is_tcp("127.0.0.1", 0))
    assert not take(listen_tcp("127.0.0.1", 0), is_unix(str(tmp_path / "s"), 0o600))


def test_abstract_socket_is_taken_by_its_name_or_its_beginning() -> None:
    for fits in (is_unix, lambda name, _: is_abstract(name[:-4])):
        name = f"\0test-{secrets.token_hex(8)}"
        assert take(listen_unix(name, 0o600), fits(name, 0o600))


def test_abstract_socket_of_another_name_is_not_taken() -> None:
    name = f"\0test-{secrets.token_hex(8)}"
    assert not take(listen_unix(name, 0o600), is_abstract("\0other-"))


def test_what_nobody_takes_is_closed_here_and_by_the_manager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cleanup: ExitStack
) -> None:
    manager = cleanup.enter_context(Manager())
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.address))
    sock = listen_tcp("127.0.0.1", 0)
    port = sock.getsockname()[1]
    manager.stored.append(("unknown", os.dup(sock.fileno())))
    passed = PassedSockets([Passed("unknown", sock.detach()), Passed("pipe", os.memfd_create("x"))])
    passed.drop_rest()
    assert f"unknown, 127.0.0.1 port {port}" in caplog.text
    assert "no socket: pipe" in caplog.text
    assert manager.stored == []
    listen_tcp("127.0.0.1", port).close()


def test_descriptor_that_is_not_open_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    PassedSockets([Passed("a", 99999)]).drop_rest()
    assert "no socket: a" in caplog.text
