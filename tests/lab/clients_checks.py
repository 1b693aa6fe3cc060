# SPDX-License-Identifier: Apache-2.0
"""Clients and servers that others wrote: what tests/lab/clients runs in its tree."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.images import DATA, MiB, Source, compared, make_source
from tests.lab.table import Table
from tests.support.daemon import Certificates, Daemon, Section

RESULTS = Path(os.environ["RESULTS"])
NBD_SOCKET = "/run/nbd"
#: Of images behind NBD servers.
SMALL = 64 * MiB
#: What the lab does not run, and why.
SKIPPED = {
    "virt-v2v, whole": "needs a guest to convert and a fake engine; the requests of its plugin are in make test",
    "oVirt SDK's upload and download examples": "need an engine",
    "@vates/nbd-client": "the package index here lacks its dependency @xen-orchestra/async-map 0.1.5",
    "Rust's nbd crate": "no program that uses it is written yet",
    "qemu's iotests": "no wrapper is written yet",
}


@dataclass(frozen=True)
class Bench:
    """A daemon with all services, and images."""

    daemon: Daemon
    source: Source
    table: Table
    directory: Path

    @property
    def cafile(self) -> Path:
        return self.daemon.cafile

    def nbd_uri(self, ticket: str) -> str:
        return f"nbd+unix:///{ticket}?socket={NBD_SOCKET}"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("clients")
    # A short path: the name of a socket is limited.
    config: dict[str, Section] = {"nbd": {"enable": True, "port": 0, "socket": NBD_SOCKET}}
    with Daemon(Certificates.make(directory), config) as daemon:
        yield Bench(daemon, make_source(directory), Table(RESULTS / "clients.md", "program"), directory)


def run(*command: object, timeout: float = 300) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{words[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


# Downloads, with several connections, and continued

Fetch = Callable[[Bench, str, Path], None]


def _rclone(bench: Bench, url: str, copy: Path) -> None:
    run("rclone", "copyurl", "--ca-cert", bench.cafile, "--config", "/dev/null", url, copy)


def _aria2(bench: Bench, url: str, copy: Path) -> None:
    how = ["-c", "-x", "8", "-s", "8", "-k", "1M", "--allow-overwrite=true", "--auto-file-renaming=false"]
    trust = f"--ca-certificate={bench.cafile}"
    run("aria2c", "--summary-interval=0", "--async-dns=false", *how, trust, "-d", copy.parent, "-o", copy.name, url)


def _lftp(bench: Bench, url: str, copy: Path) -> None:
    how = "get -c" if copy.exists() else "pget -n 8"
    run("lftp", "-c", f"set ssl:ca-file {bench.cafile}; set cmd:fail-exit yes; {how} {url} -o {copy}")


def _wget2(bench: Bench, url: str, copy: Path) -> None:
    trust = ["-q", f"--ca-certificate={bench.cafile}", "--no-hsts"]
    if not copy.exists():
        run("wget2", *trust, "--chunk-size=4M", "--max-threads=8", "-O", copy, url)
        return
    part = copy.with_name(url.rpartition("/")[2])  # with -O it begins anew
    copy.rename(part)
    run("wget2", *trust, "-c", "-P", copy.parent, url)
    part.rename(copy)


def _axel(bench: Bench, url: str, copy: Path) -> None:
    # It knows the names of a certificate's subject only, which is empty here.
    run("axel", "-q", "--insecure", "-n", "8", "-o", copy, url)


def _curl(bench: Bench, url: str, copy: Path) -> None:
    run("curl", "-sSf", "--cacert", bench.cafile, "-C", "-", "-o", copy, url)


FETCHERS: dict[str, Fetch] = {
    "rclone": _rclone,
    "aria2c": _aria2,
    "lftp": _lftp,
    "wget2": _wget2,
    "axel": _axel,
    "curl": _curl,
}


@pytest.mark.parametrize("name", FETCHERS)
def test_image_is_fetched(bench: Bench, name: str) -> None:
    ticket = bench.daemon.add_ticket(bench.source.dense, DATA, ops=["read"])
    copy = bench.directory / f"{name}.copy"
    FETCHERS[name](bench, bench.daemon.url(ticket), copy)
    bench.table.set(name, "read", compared(bench.source.dense, copy))
    copy.unlink()
    bench.daemon.remove(ticket)


@pytest.mark.parametrize("name", ["aria2c", "lftp", "wget2", "curl"])
def test_download_goes_on(bench: Bench, name: str) -> None:
    """With the first half of the image, as after an interruption."""
    ticket = bench.daemon.add_ticket(bench.source.dense, DATA, ops=["read"])
    copy = bench.directory / f"{name}.part"
    with bench.source.dense.open("rb") as file:
        copy.write_bytes(file.read(DATA // 2))
    FETCHERS[name](bench, bench.daemon.url(ticket), copy)
    sent = bench.daemon.status(ticket)["read"]
    assert sent <= DATA * 3 // 4, f"{sent} bytes were read of {DATA}: it began anew"
    bench.table.set(name, "continued", compared(bench.source.dense, copy))
    copy.unlink()
    bench.daemon.remove(ticket)


# NBD clients


def test_fio(bench: Bench) -> None:
    path = bench.directory / "fio.raw"
    path.touch()
    os.truncate(path, SMALL)
    ticket = bench.daemon.add_ticket(path, SMALL, ops=["read", "write"])
    run("fio", "--name=lab", "--ioengine=nbd", f"--uri={bench.nbd_uri(ticket)}", "--rw=randwrite", "--bs=4k-64k",
        f"--size={SMALL}", "--iodepth=16", "--verify=crc32c", "--do_verify=1", "--verify_state_save=0")  # fmt: skip
    bench.table.set("fio (nbd)", "written", "as read, 64 MiB at random")
    bench.daemon.remove(ticket)


def test_nbdfuse(bench: Bench) -> None:
    if not Path("/dev/fuse").exists():
        bench.table.set("nbdfuse", "read", "SKIP: no /dev/fuse")
        pytest.skip("no /dev/fuse")
    path = bench.directory / "fuse.raw"
    path.touch()
    os.truncate(path, SMALL)
    ticket = bench.daemon.add_ticket(path, SMALL, ops=["read", "write"])
    mounted = bench.directory / "mnt"
    mounted.mkdir()
    process = subprocess.Popen(["nbdfuse", str(mounted / "disk"), bench.nbd_uri(ticket)])
    try:
        wait_for(mounted / "disk")
        run("dd", f"if={bench.source.small}", f"of={mounted / 'disk'}", "bs=1M", "conv=notrunc,fsync")
        bench.table.set("nbdfuse", "written", compared(bench.source.small, path))
        bench.table.set("nbdfuse", "read", compared(bench.source.small, mounted / "disk", SMALL))
    finally:
        run("fusermount3", "-u", mounted)
        process.wait(30)
    bench.daemon.remove(ticket)


def wait_for(path: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.1)


# NBD servers behind tickets

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


def client(bench: Bench, command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "imageio_daemon.client.cli", command, "--quiet", "--no-local", "--retry-for", "5"]
    words += ["--cafile", str(bench.cafile), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


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
    bench.table.set(name, "behind a ticket, up", compared(bench.source.small, disk))
    bench.table.set(name, "down", compared(bench.source.small, copy))
    bench.daemon.remove(ticket)  # it is finalized, so nothing writes by it
    disk.write_bytes(bytes(SMALL))
    ticket = bench.daemon.add_ticket(disk, SMALL, url=url, ops=["read", "write"])
    run("nbdcopy", "--flush", bench.source.small, bench.nbd_uri(ticket))
    bench.table.set(name, "by NBD", compared(bench.source.small, disk))
    copy.unlink()
    bench.daemon.remove(ticket)


def new_disk(bench: Bench, name: str) -> Path:
    disk = bench.directory / f"{name}.disk"
    disk.touch()
    os.truncate(disk, SMALL)
    return disk


def test_classic_nbd_server(bench: Bench) -> None:
    disk, socket = new_disk(bench, "classic"), bench.directory / "classic.sock"
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
    disk, socket = new_disk(bench, f"nbdkit-{number}"), bench.directory / f"nbdkit-{number}.sock"
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
        bench.table.set("nbdkit, no flush", "behind a ticket, up", "refused: it cannot put it on stable storage")
        bench.daemon.remove(ticket)


def test_server_that_is_too_old_is_refused_by_name(bench: Bench) -> None:
    disk, socket = new_disk(bench, "old"), bench.directory / "old.sock"
    with started(["nbdkit", "-f", "--oldstyle", "-U", str(socket), "file", str(disk)], socket):
        ticket = bench.daemon.add_ticket(socket, SMALL, url=f"nbd:unix:{socket}", ops=["read", "write"])
        done = client(bench, "upload", "--no-state", bench.source.small, bench.daemon.url(ticket))
        assert done.returncode == 3
        assert "too old" in done.stderr, done.stderr
        bench.table.set("nbdkit, old negotiation", "behind a ticket, up", "refused: the server is too old")
        bench.daemon.remove(ticket)


def test_what_was_not_run(bench: Bench) -> None:
    """Name it in the table."""
    for program, reason in SKIPPED.items():
        bench.table.set(program, "read", f"SKIP: {reason}")
