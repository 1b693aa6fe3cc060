# SPDX-License-Identifier: Apache-2.0
"""imageioctl events."""

import json
import os
import pwd
import signal
import subprocess

import pytest

from imageio_daemon.control.events import text
from tests.control.conftest import PROGRAM, TIMEOUT, Ctl
from tests.support.daemon import Daemon
from tests.support.images import MiB

EVENT = {"number": 1, "time": "2026-03-01T12:00:00.123Z", "event": "ticket extended", "transfer": "job", "timeout": 60}


@pytest.mark.parametrize(
    ("by", "who"),
    [
        ({"uid": 0, "pid": 7}, "root[7]"),
        ({"uid": 4_000_000_000, "pid": 7}, "4000000000[7]"),
        ({"client": "127.0.0.1:99"}, "127.0.0.1:99"),
        ({}, "daemon"),
    ],
    ids=["user", "no name", "tcp", "daemon"],
)
def test_line_names_who_has_asked(by: dict[str, object], who: str) -> None:
    assert text({**EVENT, **by}) == f"2026-03-01T12:00:00.123Z {who}: ticket extended transfer=job timeout=60"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a timeout=9", '"a timeout=9"'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        ("", '""'),
        ("Größe", "Größe"),
        ("a\nb", r'"a\nb"'),
    ],
)
def test_a_name_adds_no_other_detail(name: str, shown: str) -> None:
    line = text({**EVENT, "transfer": name})
    assert line == f"2026-03-01T12:00:00.123Z daemon: ticket extended transfer={shown} timeout=60"


def test_events_are_shown_for_people_and_programs(daemon: Daemon, ctl: Ctl) -> None:
    daemon.add_ticket("/images/x", MiB, transfer_id="of-events")
    line = ctl("events").out.splitlines()[-1]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f" {user}[{os.getpid()}]: ticket added transfer=of-events url=file:///images/x" in line
    assert ctl("events", "--json").json()[-1]["transfer"] == "of-events"


def test_follow_goes_on_with_new_events(daemon: Daemon) -> None:
    daemon.add_ticket("/images/x", MiB, transfer_id="before")
    command = [*PROGRAM, "events", "--follow", "--json", "--socket", daemon.control_socket]
    process = subprocess.Popen(["env", "--default-signal=INT", *command], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        seen = []
        while "before" not in seen:
            seen.append(json.loads(process.stdout.readline()).get("transfer"))
        daemon.add_ticket("/images/x", MiB, transfer_id="meanwhile")
        assert json.loads(process.stdout.readline())["transfer"] == "meanwhile"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
