# SPDX-License-Identifier: Apache-2.0
"""imageioctl events."""

import json
import os
import pwd
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

from imageio_daemon.control.events import text
from tests.control.conftest import PROGRAM, TIMEOUT, Ctl, run
from tests.support.daemon import STATE, Daemon, MakeDaemon, Section
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


class Following:
    """`imageioctl events --follow`, which is ended by Ctrl-C and checked at the end of the block."""

    def __init__(self, daemon: Daemon) -> None:
        command = [*PROGRAM, "events", "--follow", "--json", "--socket", daemon.control_socket]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(["env", "--default-signal=INT", *command], **pipes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        with self._process:
            assert self._process.wait(TIMEOUT) == 130 or kind is not None

    def next(self) -> str | None:
        """Return the transfer of the next event."""
        assert self._process.stdout is not None
        found: str | None = json.loads(self._process.stdout.readline()).get("transfer")
        return found

    def reason(self) -> str:
        """Return the next line about a daemon that does not answer."""
        assert self._process.stderr is not None
        line: str = self._process.stderr.readline()
        return line


def test_follow_goes_on_with_new_events(daemon: Daemon) -> None:
    daemon.add_ticket("/images/x", MiB, transfer_id="before")
    with Following(daemon) as following:
        while following.next() != "before":
            pass
        daemon.add_ticket("/images/x", MiB, transfer_id="meanwhile")
        assert following.next() == "meanwhile"


@pytest.mark.parametrize("config", [{}, {"state_dir": STATE}], ids=["numbers begin anew", "events are kept"])
def test_follow_goes_on_after_a_restart_of_the_daemon(make_daemon: MakeDaemon, config: Section) -> None:
    own = make_daemon(daemon=config)
    for name in ("first", "second"):
        own.add_ticket("/images/x", MiB, transfer_id=name)
    with Following(own) as following:
        assert [following.next(), following.next()] == ["first", "second"]
        own.stop()
        assert "is imageio-daemon running?" in following.reason()
        own.restart()
        for name in ("third", "fourth"):
            own.add_ticket("/images/x", MiB, transfer_id=name)
            assert following.next() == name


def test_follow_needs_a_daemon_at_the_beginning(tmp_path: Path) -> None:
    assert run("events", "--follow", "--socket", tmp_path / "none").status == 4
