# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.runtime import systemd
from tests.support.manager import Manager


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
    assert "cannot notify the service manager of READY=1" in caplog.text


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


# Descriptors


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """A manager that keeps descriptors, and that this process notifies."""
    with Manager() as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(manager.address))
        yield manager


def test_descriptor_is_stored_under_its_name(managed: Manager) -> None:
    ours, theirs = os.pipe()
    assert systemd.store("a", theirs)
    os.close(theirs)
    systemd.forget(["b"])  # done when the manager has seen both
    ((name, kept),) = managed.stored
    assert name == "a"
    os.write(kept, b"x")
    assert os.read(ours, 1) == b"x"
    os.close(ours)


def test_descriptor_is_closed_when_it_is_forgotten(managed: Manager) -> None:
    ours, theirs = os.pipe()
    systemd.store("a", theirs)
    os.close(theirs)
    systemd.forget(["a"])
    assert managed.stored == []
    assert os.read(ours, 1) == b""
    os.close(ours)


def test_manager_that_hangs_is_logged(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "notify")
    manager.bind(path)
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setattr(systemd, "BARRIER_TIMEOUT", 0.01)
    systemd.forget(["a"])
    assert "does not answer" in caplog.text


def test_nothing_is_stored_without_a_manager(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not systemd.store("a", 0)
    systemd.forget(["a"])
    assert caplog.text == ""


_TELL = """
import json, os
from imageio_daemon.runtime import systemd
passed = systemd.take_passed()
rest = [name for name in os.environ if name.startswith("LISTEN_")]
print(json.dumps([[name, fd, os.get_inheritable(fd)] for name, fd in passed] + [rest]))
"""


def told(managed: Manager, **changes: str) -> object:
    """Return what a process under the manager gets: name, descriptor and inheritance of each, variables left."""
    done = subprocess.run(
        managed.command([sys.executable, "-c", _TELL]),
        env={**os.environ, **managed.environment(), **changes},
        pass_fds=managed.descriptors(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_passed_descriptors_have_their_names(managed: Manager) -> None:
    ours, theirs = os.pipe()
    for name in ("a", "b"):
        systemd.store(name, theirs)
    systemd.forget(["c"])
    os.close(ours)
    os.close(theirs)
    assert told(managed) == [["a", 3, False], ["b", 4, False], []]
    assert told(managed, LISTEN_FDNAMES="a") == [["a", 3, False], ["", 4, False], []]
    assert told(managed, LISTEN_FDS="1") == [["a", 3, False], []]


@pytest.mark.parametrize("count", ["", "0", "-1", "x", "513", "9" * 30])
def test_count_that_is_none_passes_nothing(managed: Manager, count: str) -> None:
    assert told(managed, LISTEN_FDS=count) == [[]]


def test_descriptors_of_another_process_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert systemd.take_passed() == []
    assert "LISTEN_FDS" not in os.environ
