# SPDX-License-Identifier: Apache-2.0
"""Tickets survive a restart of the daemon, and only those that are valid."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon, ticket
from tests.support.images import MiB, pattern
from tests.support.polling import eventually

#: The ends of a daemon: in order, and by a crash.
ENDS: dict[str, Callable[[Daemon], object]] = {"stop": Daemon.stop, "crash": Daemon.kill}


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> Callable[[Daemon], object]:
    return ENDS[request.param]


@pytest.fixture
def own(make_daemon: MakeDaemon, tmp_path: Path) -> Daemon:
    return make_daemon(daemon={"state_dir": tmp_path / "state"})


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB, seed=1))
    return path


def tickets(daemon: Daemon) -> list[str]:
    return [shown["uuid"] for shown in daemon.control("GET", "/tickets/").json()]


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "tickets").iterdir())


def test_ticket_serves_its_image_after_a_restart(
    own: Daemon, image: Path, end: Callable[[Daemon], object], service_name: str
) -> None:
    ticket_id = own.add_ticket(image, MiB, transfer_id="backup", filename="disk.raw")
    before = own.status(ticket_id)
    end(own)
    own.restart()
    assert own.status(ticket_id) == {**before, "expires": pytest.approx(before["expires"], abs=2), "idle_time": 0}
    with own.connect(service_name) as client:
        assert client.get(f"/images/{ticket_id}").body == image.read_bytes()
        assert client.request("PUT", f"/images/{ticket_id}", None, pattern(MiB, seed=2)).status == 200
    assert image.read_bytes() == pattern(MiB, seed=2)


def test_image_is_opened_by_the_first_request(own: Daemon, image: Path) -> None:
    ticket_id = own.add_ticket(image, MiB)
    own.stop()
    own.restart()
    assert not own.has_open(image)
    with own.connect("unix") as client:
        client.get(f"/images/{ticket_id}")
        assert own.has_open(image)


def test_renewal_by_use_survives(own: Daemon, image: Path, end: Callable[[Daemon], object], tmp_path: Path) -> None:
    ticket_id = own.add_ticket(image, MiB, timeout=300)
    own.extend(ticket_id, 10)
    (file,) = files(tmp_path)
    before = file.read_bytes()
    with own.connect("unix") as client:
        client.get(f"/images/{ticket_id}")
    if end is Daemon.kill:
        eventually(lambda: file.read_bytes() != before, "the renewal is kept")
    expires = own.status(ticket_id)["expires"]
    end(own)
    own.restart()
    assert own.status(ticket_id)["expires"] == pytest.approx(expires, abs=2)


def test_removed_ticket_stays_away(own: Daemon, image: Path, end: Callable[[Daemon], object]) -> None:
    ticket_id, other = own.add_ticket(image, MiB), own.add_ticket(image, MiB)
    own.remove(ticket_id)
    end(own)
    own.restart()
    assert tickets(own) == [other]


def test_cleared_tickets_stay_away(own: Daemon, image: Path, end: Callable[[Daemon], object]) -> None:
    own.add_ticket(image, MiB)
    assert own.control("DELETE", "/tickets/").status == 204
    end(own)
    own.restart()
    assert tickets(own) == []


def test_ticket_that_was_ended_by_hand_stays_away(
    own: Daemon, image: Path, end: Callable[[Daemon], object], tmp_path: Path
) -> None:
    ticket_id = own.add_ticket(image, MiB)
    own.extend(ticket_id, 0)
    assert files(tmp_path) == []
    end(own)
    own.restart()
    assert tickets(own) == []


def test_expired_ticket_is_forgotten(own: Daemon, image: Path, tmp_path: Path) -> None:
    ticket_id = own.add_ticket(image, MiB)
    own.extend(ticket_id, 1)
    assert len(files(tmp_path)) == 1
    eventually(lambda: not files(tmp_path), "its file is removed")


def test_ticket_of_the_command_line_is_not_kept(make_daemon: MakeDaemon, image: Path, tmp_path: Path) -> None:
    given = ticket(image, MiB)
    (tmp_path / "ticket").write_text(json.dumps(given))
    daemon = make_daemon(daemon={"state_dir": tmp_path / "state"}, arguments=("--ticket", str(tmp_path / "ticket")))
    assert tickets(daemon) == [given["uuid"]]
    assert files(tmp_path) == []


def test_tickets_are_not_kept_if_it_is_not_wanted(make_daemon: MakeDaemon, image: Path, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"state_dir": tmp_path / "state", "keep_tickets": False})
    daemon.add_ticket(image, MiB)
    assert files(tmp_path) == []


def test_restored_ticket_is_logged_without_its_id(own: Daemon, image: Path) -> None:
    own.add_ticket(image, MiB, transfer_id="backup")
    own.send_signal(signal.SIGTERM)
    own.wait()
    own.restart()
    assert own.log.find("ticket restored transfer=backup")


def test_renewal_survives_though_requests_do_not_end(make_daemon: MakeDaemon, image: Path, tmp_path: Path) -> None:
    config = {"state_dir": tmp_path / "state", "shutdown_timeout": 0}
    stuck = make_daemon(program="tests.support.stuckloop", daemon=config)
    ticket_id = stuck.add_ticket(image, MiB, timeout=300)
    stuck.extend(ticket_id, 10)
    with stuck.connect("unix") as client:
        client.get(f"/images/{ticket_id}")
    expires = stuck.status(ticket_id)["expires"]
    stuck.send_signal(signal.SIGTERM)
    assert stuck.wait() == 1
    assert stuck.log.find("requests did not end")
    stuck.restart()
    assert stuck.status(ticket_id)["expires"] == pytest.approx(expires, abs=2)
    stuck.kill()
