# SPDX-License-Identifier: Apache-2.0
"""The audit log of the control service."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import STATE, Daemon, MakeDaemon
from tests.support.http_client import Connection, connect_tcp
from tests.support.images import MakeImage, MiB
from tests.support.places import Trait, needs


def events(daemon: Daemon, after: int = 0) -> list[dict[str, Any]]:
    """Return the events with larger numbers."""
    told: list[dict[str, Any]] = daemon.control("GET", f"/events?after={after}").json()
    return told


def last(daemon: Daemon) -> int:
    return max((event["number"] for event in events(daemon)), default=0)


@needs(Trait.OWN)
def test_each_change_of_a_ticket_is_told_with_its_caller(daemon: Daemon, new_image: MakeImage) -> None:
    before = last(daemon)
    image = new_image(size=MiB, transfer_id="job")
    status = daemon.status(image.ticket)
    daemon.put_ticket({name: status[name] for name in ("uuid", "url", "size", "ops", "timeout", "transfer_id")})
    daemon.extend(image.ticket, 60)
    daemon.remove(image.ticket)
    told = events(daemon, before)
    names = ["ticket added", "ticket replaced", "ticket extended", "ticket canceled", "ticket removed"]
    assert [event["event"] for event in told] == names
    assert {(event["transfer"], event["uid"], event["pid"]) for event in told} == {("job", os.getuid(), os.getpid())}
    assert told[2]["timeout"] == 60
    assert told[0].items() >= {"url": f"file://{image.path}", "size": MiB, "ops": "write"}.items()


def test_each_event_is_a_line_of_the_log(daemon: Daemon, new_image: MakeImage) -> None:
    start = daemon.log.end()
    image = new_image(size=MiB, transfer_id="logged")
    daemon.extend(image.ticket, 60)
    daemon.remove(image.ticket)
    by = rf"uid={os.getuid()} pid={os.getpid()}"
    for line in ("ticket added transfer=logged url=.*", "ticket extended transfer=logged timeout=60"):
        daemon.log.wait_for(f"{line} {by}$", start=start)
    for name in ("canceled", "removed"):
        daemon.log.wait_for(f"ticket {name} transfer=logged {by}$", start=start)


def test_removal_of_all_tells_each(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    for name in ("a", "b"):
        daemon.add_ticket("/images/x", MiB, transfer_id=name)
    assert daemon.control("DELETE", "/tickets/").status == 204
    told = {(event["event"], event["transfer"]) for event in events(daemon)}
    assert told >= {("ticket removed", "a"), ("ticket removed", "b")}


def test_removal_of_an_unknown_ticket_is_no_event(daemon: Daemon) -> None:
    before = last(daemon)
    daemon.remove("unknown")
    assert events(daemon, before) == []


def test_ticket_of_the_command_line_has_no_caller(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "ticket.json"
    path.write_text('{"uuid": "a", "url": "file:///x", "size": 1, "timeout": 1, "ops": [], "transfer_id": "first"}')
    (event,) = events(make_daemon(arguments=("--ticket", str(path))))
    assert event.keys() == {"number", "time", "event", "transfer", "url", "size", "ops"}


def test_drain_is_an_event_with_its_caller(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    image = daemon.add_ticket("/images/x", MiB)
    with daemon.connect("unix") as client:
        client.request("OPTIONS", f"/images/{image}")
        assert daemon.control("PUT", "/drain").status == 200
        told = events(daemon)[-1]
        assert (told["event"], told["uid"], told["pid"]) == ("draining", os.getuid(), os.getpid())


def test_events_outlive_a_restart(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(daemon={"state_dir": STATE})
    daemon.add_ticket("/images/x", MiB, transfer_id="before")
    before = events(daemon)
    daemon.stop()
    daemon.restart()
    daemon.add_ticket("/images/x", MiB, transfer_id="after")
    told = events(daemon)
    assert told[: len(before)] == before
    assert [event["transfer"] for event in told[len(before) :]] == ["after"]
    assert told[-1]["number"] == len(told)


def test_clients_of_tcp_have_their_address(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(control={"transport": "tcp", "port": 0, "socket": ""})
    with Connection(connect_tcp("localhost", daemon.control_port)) as connection:
        assert connection.request("PUT", "/drain").status == 200
        (event,) = connection.get("/events").json()
    host, _, port = event["client"].rpartition(":")
    assert (event["event"], host in ("127.0.0.1", "::1"), port.isdecimal()) == ("draining", True, True)
    assert "uid" not in event


@pytest.mark.parametrize("after", ["", "-1", "x", "1" * 19, "%C2%B2"])
def test_number_of_another_form_is_refused(daemon: Daemon, after: str) -> None:
    answer = daemon.control("GET", f"/events?after={after}")
    assert (answer.status, answer.text) == (400, "Invalid request: 'after' is no number\n")


def test_changed_limit_of_a_tenant_is_an_event(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    told = daemon.control("PATCH", "/limits", b'{"tenants": {"red": 65536}}').json()
    assert told["tenants"] == daemon.control("GET", "/limits").json()["tenants"] == {"red": 65536}
    assert events(daemon)[-1]["tenants"] == {"red": 65536}
