# SPDX-License-Identifier: Apache-2.0
"""With a service manager, listening sockets outlive the daemon: clients wait for the next one."""

import secrets
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import MiB, pattern
from tests.support.manager import Manager


@pytest.fixture
def manager() -> Iterator[Manager]:
    with Manager() as made:
        yield made


@pytest.fixture
def own(make_daemon: MakeDaemon, manager: Manager, tmp_path: Path) -> Daemon:
    nbd = {"enable": True, "port": 0, "host": "127.0.0.1", "socket": tmp_path / "nbd"}
    return make_daemon(manager=manager, daemon={"state_dir": tmp_path / "state"}, nbd=nbd)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB, seed=1))
    return path


def listening(daemon: Daemon) -> list[str]:
    """Return the lines that tell where the daemon listens."""
    return [line.partition("listening")[2] for line in daemon.log.lines() if "listening" in line]


def test_sockets_of_all_services_are_stored_once(own: Daemon, manager: Manager) -> None:
    names = ["remote", "local", "nbd", "nbd-local", "control"]
    assert [name for name, _ in manager.stored] == names
    own.stop()
    own.restart()
    assert [name for name, _ in manager.stored] == names


@pytest.mark.parametrize("crashes", [False, True], ids=["stop", "crash"])
def test_next_process_listens_on_the_same_sockets(own: Daemon, crashes: bool) -> None:
    before = listening(own)
    if crashes:
        own.kill()
    else:
        own.stop()
    own.restart()
    assert listening(own) == before
    assert not own.log.find("not as configured")


def connect_early(daemon: Daemon, service: str, port: int) -> socket.socket:
    """Connect to a service while no daemon runs."""
    if service == "tls":
        return socket.create_connection(("localhost", port), timeout=20)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(daemon.local_socket)
    return sock


def test_client_that_connects_while_no_daemon_runs_is_answered_by_the_next(
    own: Daemon, image: Path, service_name: str
) -> None:
    ticket_id, port = own.add_ticket(image, MiB), own.port
    own.stop()
    sock = connect_early(own, service_name, port)
    own.restart()
    if service_name == "tls":
        sock = ssl.create_default_context(cafile=str(own.cafile)).wrap_socket(sock, server_hostname="localhost")
    with Connection(sock) as client:
        assert client.get(f"/images/{ticket_id}").body == image.read_bytes()


def test_abstract_name_that_was_chosen_at_random_stays(
    make_daemon: MakeDaemon, manager: Manager, image: Path, tmp_path: Path
) -> None:
    daemon = make_daemon(manager=manager, local={"socket": ""})
    before = listening(daemon)
    daemon.stop()
    daemon.restart()
    assert listening(daemon) == before
    assert any("@imageio-daemon-" in line for line in before)


def test_other_configuration_gets_new_sockets(make_daemon: MakeDaemon, manager: Manager, tmp_path: Path) -> None:
    daemon = make_daemon(manager=manager, remote={"host": "::", "port": 0})
    port = daemon.port
    daemon.stop()
    # The old socket has the same port of all addresses: it must be closed everywhere before.
    other = make_daemon(manager=manager, remote={"host": "0.0.0.0", "port": port})
    assert other.port == port
    assert other.log.find("not as configured: remote, ::")
    assert [name for name, _ in manager.stored].count("remote") == 1


def test_paths_are_removed_without_a_manager(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(local={"socket": tmp_path / "local"})
    assert (tmp_path / "local").exists()
    daemon.stop()
    assert not (tmp_path / "local").exists()


def test_socket_of_a_socket_unit_is_used_and_not_stored(make_daemon: MakeDaemon, manager: Manager) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    manager.stored.append(("remote", sock.detach()))
    daemon = make_daemon(manager=manager, remote={"host": "127.0.0.1", "port": port})
    assert daemon.port == port
    assert [name for name, _ in manager.stored].count("remote") == 1


def test_unknown_socket_is_closed_with_a_warning(make_daemon: MakeDaemon, manager: Manager) -> None:
    name = f"\0test-{secrets.token_hex(8)}"
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(name)
    sock.listen()
    manager.stored.append(("other", sock.detach()))
    daemon = make_daemon(manager=manager)
    assert daemon.log.find(f"not as configured: other, @{name[1:]}")
    assert name.replace("\0", "@") not in daemon.descriptors()
