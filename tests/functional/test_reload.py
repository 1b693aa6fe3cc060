# SPDX-License-Identifier: Apache-2.0
"""Options that change while the daemon runs: by a reload, and the level of the log by the control service."""

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from imageio_daemon.units import MAX_TENANTS
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.images import MiB
from tests.support.polling import eventually

Reload = Callable[..., None]


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon()


@pytest.fixture
def reload(own: Daemon) -> Reload:
    """Write options over the others, and have the daemon read them."""

    def write(text: str) -> None:
        (own.directory / "conf.d" / "z.conf").write_text(text)
        own.send_signal(signal.SIGHUP)

    return write


def log_level(daemon: Daemon) -> dict[str, Any]:
    told: dict[str, Any] = daemon.control("GET", "/log").json()
    return told


def set_level(daemon: Daemon, document: object) -> tuple[int, str]:
    answer = daemon.control("PUT", "/log", json.dumps(document).encode())
    return answer.status, answer.text


def test_level_is_set_and_set_back(own: Daemon) -> None:
    assert log_level(own) == {"level": "info", "configured": "info", "seconds": None}
    assert set_level(own, {"level": "debug"})[0] == 200
    own.control("GET", "/status")
    own.log.wait_for("DEBUG .*request.*resource=/status")
    assert set_level(own, {"level": "info", "seconds": 60})[0] == 200
    start = own.log.end()
    own.control("GET", "/status")
    assert own.log.find("resource=/status", start=start) is None
    assert 50 < log_level(own)["seconds"] <= 60


def test_requests_that_c_serves_are_logged_when_wanted(own: Daemon, tmp_path: Any) -> None:
    (tmp_path / "image").write_bytes(bytes(MiB))
    ticket = own.add_ticket(tmp_path / "image", MiB)
    assert set_level(own, {"level": "debug"})[0] == 200
    with own.connect("unix") as client:

        def told() -> bool:
            assert client.get(f"/images/{ticket}").status == 200
            return own.log.find("DEBUG .*request.*GET") is not None

        eventually(told, "a request is in the log")


def test_change_of_the_level_is_an_event(own: Daemon) -> None:
    set_level(own, {"level": "warning", "seconds": 9})
    event = own.control("GET", "/events").json()[-1]
    wanted = {"event": "log level set", "level": "warning", "seconds": 9, "uid": os.getuid(), "pid": os.getpid()}
    assert event.items() >= wanted.items()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "expected a JSON object"),
        ({}, "'level' must be one of debug, info, warning, error"),
        ({"level": ["debug"]}, "'level' must be one of"),
        ({"level": "trace"}, "'level' must be one of"),
        *(({"level": "debug", "seconds": wrong}, "'seconds' must be") for wrong in (0, 2592001, True, 1.5, "1")),
    ],
    ids=str,
)
def test_level_of_another_form_is_refused(daemon: Daemon, document: object, reason: str) -> None:
    status, text = set_level(daemon, document)
    assert (status, reason in text) == (400, True), text


def test_reload_changes_the_level(own: Daemon, reload: Reload) -> None:
    reload("[log]\nlevel = debug\n")
    own.log.wait_for(re.escape('option changed option="[log] level" value=debug'))
    assert log_level(own) == {"level": "debug", "configured": "debug", "seconds": None}


def test_reload_changes_limits(own: Daemon, reload: Reload) -> None:
    own.add_ticket("/images/x", MiB)
    reload("[daemon]\nmax_tickets = 1\nmax_total_connections = 1\nshutdown_timeout = 4\n[nbd]\nmax_connections = 2\n")
    own.log.wait_for(re.escape('option="[nbd] max_connections" value=2'))
    refused = own.control("PUT", "/tickets/a", b'{"uuid": "a", "url": "file:///x", "size": 1, "timeout": 1, "ops": []}')
    assert refused.status == 503
    metrics = own.control("GET", "/metrics").text
    assert "imageio_tickets_limit 1.0" in metrics
    assert 'imageio_connection_places_limit{limit="http"} 1.0' in metrics


def test_reload_changes_the_rates_of_tickets_that_tell_none(own: Daemon, reload: Reload) -> None:
    tickets = [own.add_ticket("/images/x", MiB, **fields) for fields in ({}, {"rate": 0}, {"rate": 2 * MiB})]
    changed = own.add_ticket("/images/x", MiB)
    assert own.control("PATCH", f"/tickets/{changed}", b'{"rate": 3145728}').status == 200
    reload("[limits]\nrate = 1M\ntenant_rate = 5M\n")
    own.log.wait_for(re.escape('option="[limits] tenant_rate" value=5242880'))
    rates = [own.status(ticket)["rate"] for ticket in (*tickets, changed)]
    assert rates == [MiB, 0, 2 * MiB, 3 * MiB]


def test_reload_tells_what_needs_a_restart(own: Daemon, reload: Reload) -> None:
    reload("[backend_file]\nio_threads = 3\n")
    own.log.wait_for(re.escape("[backend_file] io_threads changes at the next start"))


def test_reload_of_invalid_files_changes_nothing(own: Daemon, reload: Reload) -> None:
    reload("[log]\nlevel = debug\n[daemon]\nmax_tickets = none\n")
    own.log.wait_for("ERROR .*the configuration is not reloaded: .*z.conf:4: ")
    assert log_level(own)["level"] == "info"


def patch_limits(daemon: Daemon, document: object) -> tuple[int, str]:
    answer = daemon.control("PATCH", "/limits", json.dumps(document).encode())
    return answer.status, answer.text


def test_change_of_limits_holds_for_tickets_that_are_there(own: Daemon) -> None:
    tickets = [own.add_ticket("/images/x", MiB, **fields) for fields in ({}, {"rate": 2 * MiB})]
    limits = {"rate": MiB, "tenant_rate": 5 * MiB, "transfers": 3}
    assert json.loads(patch_limits(own, limits)[1]) == limits
    assert own.control("GET", "/limits").json() == limits
    assert [own.status(ticket)["rate"] for ticket in tickets] == [MiB, 2 * MiB]


def test_change_of_limits_is_an_event(own: Daemon) -> None:
    patch_limits(own, {"transfers": 3})
    event = own.control("GET", "/events").json()[-1]
    wanted = {"event": "limits set", "transfers": 3, "uid": os.getuid(), "pid": os.getpid()}
    assert event.items() >= wanted.items()
    assert "rate" not in event


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "expected a JSON object"),
        ({}, "expected some of rate, tenant_rate, transfers"),
        ({"rate": MiB, "speed": 1}, "expected some of rate, tenant_rate, transfers"),
        *(({"rate": wrong}, "'rate' must be 0, for no limit, or between") for wrong in (-1, 65535, True, 1.5, "1M")),
        ({"tenant_rate": 17179869185}, "'tenant_rate' must be 0"),
        ({"transfers": 65537}, "'transfers' must be 0, for no limit, or between 1 and 65536"),
    ],
    ids=str,
)
def test_limits_of_another_form_are_refused(daemon: Daemon, document: object, reason: str) -> None:
    status, text = patch_limits(daemon, document)
    assert (status, reason in text) == (400, True), text


def test_change_of_limits_that_is_refused_changes_nothing(own: Daemon) -> None:
    for start in (0, MAX_TENANTS // 2):
        names = range(start, start + MAX_TENANTS // 2)
        assert patch_limits(own, {"tenants": {f"{name:04}": 0 for name in names}})[0] == 200
    before = own.control("GET", "/limits").json()
    changes = {"rate": MiB, "tenant_rate": MiB, "transfers": 3, "tenants": {"one more": MiB}}
    status, text = patch_limits(own, changes)
    assert (status, f"more than {MAX_TENANTS} tenants" in text) == (400, True), text
    assert own.control("GET", "/limits").json() == before


def test_reload_of_the_same_files_keeps_changed_limits(own: Daemon, reload: Reload) -> None:
    patch_limits(own, {"rate": MiB})
    reload("[log]\nlevel = debug\n")
    own.log.wait_for(re.escape('option changed option="[log] level" value=debug'))
    assert own.control("GET", "/limits").json()["rate"] == MiB
