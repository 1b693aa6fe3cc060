# SPDX-License-Identifier: Apache-2.0
"""imageioctl top."""

import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping
from fcntl import ioctl
from typing import Any

import pytest

from imageio_daemon.control.top import BEGIN, END, Rates, screen
from tests.control.conftest import PROGRAM, TIMEOUT, Ctl
from tests.control.test_transfers import STATE
from tests.support.daemon import Daemon
from tests.support.images import MiB


def state(name: str, **fields: Any) -> Mapping[str, Any]:
    clients = [{"service": "remote", "client": f"10.0.0.{host}:99", "seconds": 1} for host in (1, 2, 2)]
    return {**STATE, "uuid": f"id of {name}", "transfer": name, "read": 0, "written": MiB, "clients": clients, **fields}


def lines(*states: Mapping[str, Any], width: int = 200, height: int = 50) -> list[str]:
    return screen(states, {told["uuid"]: told["bytes_per_second"] for told in states}, width, height)


def test_rates_are_of_the_last_second() -> None:
    rates = Rates()
    assert rates.of([state("a", bytes_per_second=7)], 100.0) == {"id of a": 7}
    assert rates.of([state("a", written=5 * MiB)], 102.0) == {"id of a": 2 * MiB}


def test_rate_of_a_ticket_that_was_replaced_is_not_negative() -> None:
    rates = Rates()
    rates.of([state("a")], 100.0)
    assert rates.of([state("a", written=0, bytes_per_second=7)], 101.0) == {"id of a": 7}


def test_screen_has_a_summary_and_a_line_for_each_transfer_in_use() -> None:
    summary, empty, _, slow, fast = lines(state("fast", storage_wait=0), state("slow"))
    assert summary.partition("  ")[2] == ("2 transfers in use, 4 connections, 4.0 MiB/s, longest wait for storage 3 s")
    assert empty == ""
    assert (slow.split()[:4], fast.split()[0]) == (["slow", "10.0.0.2", "+1", "write"], "fast")


def test_screen_without_transfers() -> None:
    (summary, _, head) = lines()
    assert "0 transfers in use, 0 connections, 0 B/s" in summary
    assert head.split()[:2] == ["TRANSFER", "CLIENT"]


@pytest.mark.parametrize(
    ("clients", "shown"),
    [([], "-"), (["unix", "unix"], "unix"), (["[::1]:5", "[::1]:6"], "[::1]"), (["a:1", "unix", "unix"], "unix +1")],
    ids=str,
)
def test_clients_are_told_by_host(clients: list[str], shown: str) -> None:
    told = [{"client": client} for client in clients]
    assert re.match(rf"job +{re.escape(shown)}  ", lines(state("job", clients=told))[-1])


def test_screen_is_not_larger_than_the_terminal() -> None:
    shown = lines(*(state(str(number)) for number in range(50)), width=20, height=7)
    assert len(shown) == 7
    assert max(map(len, shown)) == 20


def test_top_fills_a_terminal_until_q(daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/images/x", MiB, transfer_id="in-top")
    with daemon.connect("unix") as client:
        client.request("OPTIONS", f"/images/{ticket_id}")
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
        before = termios.tcgetattr(slave)
        process = subprocess.Popen([*PROGRAM, "top", "--socket", daemon.control_socket], stdin=slave, stdout=slave)
        shown = b""
        while b"in-top" not in shown:
            shown += os.read(master, 65536)
        os.write(master, b"q")
        while END.encode() not in shown:
            shown += os.read(master, 65536)
        assert process.wait(TIMEOUT) == 0
        assert termios.tcgetattr(slave) == before
        os.close(slave)
        os.close(master)
    assert shown.startswith(BEGIN.encode())
    assert ticket_id.encode() not in shown


def test_top_needs_a_terminal(ctl: Ctl) -> None:
    ctl("top").failed_with("top needs a terminal", 2)
