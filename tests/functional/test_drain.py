# SPDX-License-Identifier: Apache-2.0
"""Draining: transfers in use go on, others are told to come again, and the daemon ends after the last one."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon, ticket
from tests.support.http_client import Connection
from tests.support.images import Image, MiB, make_image, pattern
from tests.support.manager import Manager
from tests.support.polling import eventually


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon()


@pytest.fixture
def image(own: Daemon, tmp_path: Path) -> Image:
    return make_image(own, tmp_path)()


@pytest.fixture
def busy(own: Daemon, image: Image) -> Iterator[Connection]:
    """A connection that uses the image."""
    with own.connect("unix") as connection:
        assert connection.get(image.url).status == 200
        yield connection


def drain(daemon: Daemon) -> dict[str, object]:
    answer = daemon.control("PUT", "/drain")
    assert answer.status == 200
    state: dict[str, object] = answer.json()
    return state


def test_daemon_that_is_not_told_does_not_drain(own: Daemon) -> None:
    assert own.control("GET", "/drain").json() == {"draining": False, "transfers": 0}


def test_daemon_without_transfers_ends_at_once(own: Daemon) -> None:
    assert drain(own) == {"draining": True, "transfers": 0}
    assert own.wait() == 0


def test_signal_begins_to_drain(own: Daemon) -> None:
    own.send_signal(signal.SIGUSR1)
    assert own.wait() == 0
    assert own.log.find("draining")


def test_transfer_in_use_goes_on_until_its_client_leaves(own: Daemon, image: Image, busy: Connection) -> None:
    assert drain(own) == {"draining": True, "transfers": 1}
    with own.connect("tls") as other:
        assert other.request("PUT", image.url, None, pattern(MiB, seed=2)).status == 200
    assert busy.get(image.url).body == pattern(MiB, seed=2)
    own.extend(image.ticket, 0)
    busy.close()
    assert own.wait() == 0
    assert image.content() == pattern(MiB, seed=2)


def test_transfer_that_is_not_in_use_is_told_to_come_again(
    own: Daemon, busy: Connection, tmp_path: Path, service_name: str
) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(4096))
    other = own.add_ticket(path, 4096)
    own.extend(other, 0)
    drain(own)
    own.extend(other, 300)
    with own.connect(service_name) as connection:
        answer = connection.get(f"/images/{other}")
    assert (answer.status, answer.code, answer.body) == (503, "unavailable", b"The server takes no more transfers\n")
    assert "retry-after" in answer.headers


def test_new_ticket_is_refused(own: Daemon, busy: Connection, tmp_path: Path) -> None:
    drain(own)
    fields = ticket(tmp_path / "other", 4096)
    answer = own.control("PUT", f"/tickets/{fields['uuid']}", json.dumps(fields).encode())
    assert (answer.status, answer.body) == (503, b"The server takes no more tickets\n")
    assert "retry-after" in answer.headers


def test_removed_ticket_does_not_keep_the_daemon(own: Daemon, image: Image, busy: Connection) -> None:
    drain(own)
    own.remove(image.ticket)
    busy.close()
    assert own.wait() == 0


def test_draining_daemon_can_be_stopped(own: Daemon, busy: Connection) -> None:
    drain(own)
    own.stop()


def test_repeating_changes_nothing(own: Daemon, busy: Connection) -> None:
    assert drain(own) == drain(own)
    assert own.control("GET", "/drain").json() == {"draining": True, "transfers": 1}


def test_the_service_manager_is_told_what_is_left(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    with Manager() as manager:
        daemon = make_daemon(manager=manager)
        image = make_image(daemon, tmp_path)()
        with daemon.connect("unix") as connection:
            connection.get(image.url)
            drain(daemon)
            eventually(lambda: "STATUS=draining: 1 transfers go on" in manager.states, "the manager is told")
            daemon.stop()
