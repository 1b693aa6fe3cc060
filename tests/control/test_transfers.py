# SPDX-License-Identifier: Apache-2.0
"""imageioctl transfers."""

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageio_daemon.control.output import done
from imageio_daemon.control.transfers import row
from tests.control.conftest import PROGRAM, TIMEOUT, Ctl
from tests.support.daemon import Daemon
from tests.support.images import MiB, pattern

STATE: Mapping[str, Any] = {
    "transfer": "job",
    "ops": ["write"],
    "size": 4 * MiB,
    "transferred": MiB,
    "bytes_per_second": 2 * MiB,
    "connections": 2,
    "clients": [{"request": {"waits_for": wait}} for wait in ("storage", "client", "storage", "", "")] + [{}],
    "active": True,
    "storage_wait": 3,
    "slowest_operation": {"kind": "zero", "offset": 0, "length": MiB, "seconds": 3.2},
    "zeroed": {"write": 4096, "punch_hole": MiB},
}


def test_line_of_a_transfer() -> None:
    assert row(STATE) == (
        *("job", "write", "4.0 MiB", "1.0 MiB", "25%", "2.0 MiB/s", 2, "zero", "3 s"),
        *("storage", "1.0 MiB", "punch_hole,write"),
    )


def test_line_of_a_transfer_that_has_done_nothing() -> None:
    nothing = {
        "ops": [],
        "size": 0,
        "transferred": 0,
        "bytes_per_second": 0,
        "storage_wait": 0,
        "zeroed": {},
        "clients": [],
    }
    idle = {name: value for name, value in {**STATE, **nothing}.items() if name != "slowest_operation"}
    assert row(idle) == ("job", "-", "0 B", "0 B", "", "-", 2, "-", "-", "-", "-", "-")


def test_progress_of_a_ticket_with_both_operations_is_what_was_moved() -> None:
    both = {name: value for name, value in STATE.items() if name != "transferred"}
    assert done({**both, "read": 1, "written": 10}) == 11 + MiB + 4096


def test_running_upload_is_shown(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    ticket_id = daemon.add_ticket(image, MiB, transfer_id="running")
    daemon.add_ticket(image, MiB, transfer_id="unused")
    with daemon.connect("unix") as client:
        assert client.put(f"/images/{ticket_id}", pattern(MiB)).status == 200
        (line,) = [line for line in ctl("transfers").out.splitlines() if line.startswith("running ")]
        assert line.split()[:7] == ["running", "write", "1.0", "MiB", "1.0", "MiB", "100%"]
        told = {state["transfer"]: state for state in ctl("transfers", "--json").json()}
        assert told["running"]["transferred"] == MiB
        assert "uuid" not in told["running"]
        assert "unused" not in told


def test_watch_tells_again_until_interrupted(daemon: Daemon, image: Path) -> None:
    ticket_id = daemon.add_ticket(image, MiB, transfer_id="watched")
    with daemon.connect("unix") as client:
        assert client.get(f"/images/{ticket_id}").status == 200
        command = [*PROGRAM, "transfers", "--watch", "--json", "--socket", daemon.control_socket]
        process = subprocess.Popen(["env", "--default-signal=INT", *command], stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(2)]
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT) == 130
    assert {line["transfer"] for line in lines} >= {"watched"}
