# SPDX-License-Identifier: Apache-2.0
"""NBD servers of others behind tickets: what tests/lab/clients runs in its tree."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.clients_bench import SMALL, Bench, client, run, table, wait_for
from tests.lab.images import compared

TABLE = table("servers", "server")
NBD_SERVER = """\
[generic]
unixsock = {socket}
port = 10809
[disk]
exportname = {disk}
flush = true
fua = true
trim = true
"""
NBDKIT = {
    "nbdkit": [],
    "nbdkit, no structured replies": ["--no-sr"],
    "nbdkit, no block status": ["--filter=noextents"],
    "nbdkit, no zeroing": ["--filter=nozero"],
    "nbdkit, FUA by flush": ["--filter=fua"],
    "nbdkit, no cache, 1 connection": ["--filter=nocache", "--filter=noparallel"],
    "nbdkit, blocks of 4096": ["--filter=blocksize-policy"],
}
PARAMETERS = {
    "nbdkit, FUA by flush": ["fuamode=emulate"],
    "nbdkit, blocks of 4096": [
        "blocksize-minimum=4096",
        "blocksize-preferred=65536",
        "blocksize-maximum=1M",
        "blocksize-error-policy=error",
    ],
    "nbdkit, no cache, 1 connection": ["serialize=connections"],
}
#: A server of nbdkit's eval plugin that can do everything but flush.
NO_FLUSH = ["eval", f"get_size=echo {SMALL}", "pread=head -c $3 /dev/zero", "pwrite=cat >/dev/null"]


@contextlib.contextmanager
def started(command: list[str], socket: Path) -> Iterator[None]:
    process = subprocess.Popen(command)
    try:
        wait_for(socket)
        yield
    finally:
        process.terminate()
        process.wait(20)


def up_and_down(bench: Bench, name: str, url: str, disk: Path) -> None:
    """Move an image to a server and back, through the daemon."""
    ticket = bench.daemon.add_ticket(disk, SMALL, url=url, ops=["read", "write"])
    copy = bench.directory / "copy"
    for command in (
        ("upload", "--no-state", "--verify", bench.source.small, bench.daemon.url(ticket)),
        ("download", "--verify", bench.daemon.url(ticket), copy),
    ):
        done = client(bench, *command)
        assert done.returncode == 0, done.stderr
    TABLE.set(name, "behind a ticket, up", compared(bench.source.small, disk))
    TABLE.set(name, "down", compared(bench.source.small, copy))
    bench.daemon.remove(ticket)  # it is finalized, so nothing writes by it
    disk.write_bytes(bytes(SMALL))
    ticket = bench.daemon.add_ticket(disk, SMALL, url=url, ops=["read", "write"])
    run("nbdcopy", "--flush", bench.source.small, bench.nbd_uri(ticket))
    TABLE.set(name, "by NBD", compared(bench.source.small, disk))
    copy.unlink()
    bench.daemon.remove(ticket)


def test_classic_nbd_server(bench: Bench) -> None:
    disk, socket = bench.new_disk("classic"), bench.directory / "classic.sock"
    config = bench.directory / "nbd-server.conf"
    config.write_text(NBD_SERVER.format(socket=socket, disk=disk))
    pid = bench.directory / "nbd-server.pid"
    run("nbd-server", "-C", config, "-p", pid)  # with -d it would serve one connection and end
    try:
        wait_for(socket)
        up_and_down(bench, "nbd-server 3.24", f"nbd:unix:{socket}:exportname=disk", disk)
    finally:
        os.kill(int(pid.read_text()), signal.SIGTERM)


@pytest.mark.parametrize("name", NBDKIT)
def test_nbdkit(bench: Bench, name: str) -> None:
    number = list(NBDKIT).index(name)
    disk, socket = bench.new_disk(f"nbdkit-{number}"), bench.directory / f"nbdkit-{number}.sock"
    command = ["nbdkit", "-f", "-U", str(socket), *NBDKIT[name], "file", str(disk), *PARAMETERS.get(name, [])]
    with started(command, socket):
        up_and_down(bench, name, f"nbd:unix:{socket}", disk)


def test_server_without_flush_is_refused_by_name(bench: Bench) -> None:
    socket = bench.directory / "no-flush.sock"
    with started(["nbdkit", "-f", "-U", str(socket), *NO_FLUSH], socket):
        ticket = bench.daemon.add_ticket(socket, SMALL, url=f"nbd:unix:{socket}", ops=["read", "write"])
        done = client(bench, "upload", "--no-state", bench.source.small, bench.daemon.url(ticket))
        assert done.returncode != 0
        assert "stable storage" in done.stderr, done.stderr
        TABLE.set("nbdkit, no flush", "behind a ticket, up", "refused: it cannot put it on stable storage")
        bench.daemon.remove(ticket)


def test_server_that_is_too_old_is_refused_by_name(bench: Bench) -> None:
    disk, socket = bench.new_disk("old"), bench.directory / "old.sock"
    with started(["nbdkit", "-f", "--oldstyle", "-U", str(socket), "file", str(disk)], socket):
        ticket = bench.daemon.add_ticket(socket, SMALL, url=f"nbd:unix:{socket}", ops=["read", "write"])
        done = client(bench, "upload", "--no-state", bench.source.small, bench.daemon.url(ticket))
        assert done.returncode == 3
        assert "too old" in done.stderr, done.stderr
        TABLE.set("nbdkit, old negotiation", "behind a ticket, up", "refused: the server is too old")
        bench.daemon.remove(ticket)
