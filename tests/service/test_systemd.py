# SPDX-License-Identifier: Apache-2.0
import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.service import systemd


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The socket of a service manager, not yet bound."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        yield sock


def test_state_reaches_a_socket_at_a_path(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    manager.bind(path)
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    systemd.notify("READY=1")
    assert manager.recv(100) == b"READY=1"


def test_state_reaches_an_abstract_socket(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"notify-{secrets.token_hex(8)}"
    manager.bind("\0" + name)
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
    systemd.notify("STOPPING=1")
    assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("value", [None, ""])
def test_nothing_happens_without_a_manager(
    value: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if value is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", value)
    systemd.notify("READY=1")
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["/missing", "/" + "x" * 200])
def test_manager_that_cannot_be_reached_is_logged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}{name}")
    systemd.notify("READY=1")
    assert "cannot tell the service manager READY=1" in caplog.text


def test_address_of_another_kind_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:2:1234")
    systemd.notify("READY=1")
    assert "unsupported address vsock:2:1234" in caplog.text


def test_manager_that_does_not_read_holds_nobody_up(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "notify")
    manager.bind(path)
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setattr(systemd, "SEND_TIMEOUT", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                other.sendto(b"x", path)
    systemd.notify("READY=1")
    assert "timed out" in caplog.text
