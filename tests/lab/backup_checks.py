# SPDX-License-Identifier: Apache-2.0
"""Backups of machines whose guest writes meanwhile: what tests/lab/backup runs in its tree."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.backup_machine import DISKS, SLOWLY, Libvirt, Machine, MiB, make_initrd, run
from tests.lab.table import Table
from tests.support.daemon import Certificates, Daemon
from tests.support.polling import eventually

RESULTS = Path(os.environ["RESULTS"])
EXAMPLE = Path("examples/backup")
CLIENT = [sys.executable, "-m", "imageio_daemon.client.cli"]
SOCKETS = Path("/run/imageio-backup")
#: Of libvirt's binding, which is Debian's and not of the environment that runs this.
BINDING = Path("/tmp/binding")
#: Of a ticket, so that a backup takes long enough for the guest to write meanwhile.
RATE = 4 * MiB
INCREMENTS = 5
USER = "imageio"


@dataclass(frozen=True)
class Bench:
    """A daemon as a user of its own, and what machines are made of."""

    daemon: Daemon
    libvirt: Libvirt
    directory: Path
    table: Table
    kernel: Path
    initrd: Path

    def machine(self, name: str, *, held: bool = False) -> Machine:
        return Machine(self.libvirt, name, self.directory / f"machine.{name}", self.kernel, self.initrd, held=held)

    def served(self) -> list[str | Path]:
        server = f"https://localhost:{self.daemon.port}"
        return ["--server", server, "--cafile", self.daemon.cafile, "--control", self.daemon.control_socket]

    def example(self, *arguments: object) -> list[str]:
        return [str(word) for word in (sys.executable, EXAMPLE, *arguments, *self.served())]

    def limit(self, rate: int) -> None:
        """Set the rate of each ticket in bytes per second; 0: there is no limit."""
        assert self.daemon.control("PATCH", "/limits", b'{"rate": %d}' % rate).status == 200

    def restored(self, backup: Path, format_name: str) -> str:
        """Restore a backup to a new image by the example, and return the checksum of that."""
        target = self.directory / f"target.{format_name}"
        size = re.search(r"virtual size: .*\((\d+) bytes\)", run("qemu-img", "info", backup))
        assert size is not None
        run("qemu-img", "create", "-q", "-f", format_name, target, size[1])
        shutil.chown(target, USER)
        self.limit(0)
        run(*self.example("restore", backup, target, "--format", format_name))
        self.limit(RATE)
        found = checksum(target, format_name)
        target.unlink()
        return found


def checksum(image: Path, format_name: str) -> str:
    """Return the SHA-256 of what an image reads as, by qemu-img."""
    raw = image.with_suffix(".read")
    run("qemu-img", "convert", "-f", format_name, "-O", "raw", image, raw)
    with raw.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    raw.unlink()
    return found


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    # In memory: a qemu that is killed while a slow disk has a request of its stays until that is done.
    directory = Path("/tmp/backup")
    directory.mkdir(mode=0o711)
    BINDING.mkdir()
    for name in ("libvirt.py", *(path.name for path in Path("/usr/lib/python3/dist-packages").glob("libvirtmod.*"))):
        (BINDING / name).symlink_to(f"/usr/lib/python3/dist-packages/{name}")
    os.environ["PYTHONPATH"] = str(BINDING)
    if subprocess.run(["id", USER], capture_output=True, check=False).returncode:
        run("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", USER)
    # As docs/backup.md makes it.
    run("install", "-d", "-o", "libvirt-qemu", "-g", USER, "-m", "2710", SOCKETS)
    libvirt = Libvirt(RESULTS)
    initrd = directory / "initrd"
    kernel = make_initrd(initrd)
    user = {"drop_privileges": True, "user_name": USER, "group_name": USER}
    with Daemon(Certificates.make(directory), {"daemon": user, "limits": {"rate": RATE}}) as daemon:
        yield Bench(daemon, libvirt, directory, Table(RESULTS / "backup.md", "check"), kernel, initrd)


@contextlib.contextmanager
def running(machine: Machine) -> Iterator[Machine]:
    """End a machine at the end, which has to go on until then."""
    try:
        yield machine
        machine.goes_on()
    finally:
        machine.end()


# Checkpoints


def test_each_checkpoint_is_restored_as_the_guest_had_it(bench: Bench) -> None:
    backups = bench.directory / "ours"
    backups.mkdir()
    expected = {}
    with running(bench.machine("ours")) as machine:
        for number in range(INCREMENTS + 1):
            machine.goes_on()
            kind = "increment" if number else "full"
            done = run(*bench.example(kind, machine.name, backups, "--sockets", SOCKETS, "--freeze"))
            written = machine.said("WROTE")
            copy = Path(done.strip())
            expected[copy] = machine.sums()
            since_thaw = machine.console.rpartition("THAWED")[2].count("WROTE")
            assert since_thaw > 0, "the guest wrote nothing meanwhile"
            size = sum(path.stat().st_blocks * 512 for path in copy.iterdir()) / MiB
            bench.table.set(f"{kind} {number}", "writes of the guest until then", str(written))
            bench.table.set(f"{kind} {number}", "while it ran", str(since_thaw))
            bench.table.set(f"{kind} {number}", "MiB of the copy", f"{size:.1f}")
        assert not machine.has_job()
        assert machine.checkpoints() == [list(expected)[-1].name]
    for number, (copy, sums) in enumerate(expected.items()):
        kind = "increment" if number else "full"
        for name, format_name in ((name, format_name) for name in DISKS for format_name in ("raw", "qcow2")):
            assert bench.restored(copy / f"{name}.qcow2", format_name) == sums[name], (copy, name, format_name)
        bench.table.set(f"{kind} {number}", "restored to raw and qcow2", "as the guest had it")


def test_virtnbdbackup_reads_the_same_checkpoints(bench: Bench) -> None:
    """Both read the socket of one job; virtnbdbackup has begun it and waits, while the guest answers to its thaw."""
    theirs, ours = bench.directory / "theirs", bench.directory / "beside"
    expected = []
    with running(bench.machine("beside", held=True)) as machine:
        for number in range(INCREMENTS + 1):
            machine.goes_on()
            expected.append(machine_backed_up_by_both(bench, machine, number, theirs, ours))
    for number, sums in enumerate(expected):
        target = bench.directory / f"theirs.{number}"
        run(
            "virtnbdrestore",
            "-n",
            "-i",
            theirs,
            "-o",
            target,
            "-u",
            f"virtnbdbackup.{number}",
            "-L",
            "/tmp/restore.log",
        )
        for name in DISKS:
            (image,) = (path for path in target.rglob(f"{name}.qcow2*") if path.is_file())
            found = {"theirs": checksum(image, "qcow2"), "ours": bench.restored(ours / f"{name}.{number}.qcow2", "raw")}
            assert found == {"theirs": sums[name], "ours": sums[name]}
        shutil.rmtree(target)
        kind = "increment" if number else "full"
        bench.table.set(f"{kind} {number}", "virtnbdbackup beside ours, one job", "equal, as the guest had it")


def machine_backed_up_by_both(bench: Bench, machine: Machine, number: int, theirs: Path, ours: Path) -> dict[str, str]:
    """Make a backup by both, and return the checksums of the guest at its checkpoint."""
    ours.mkdir(exist_ok=True)
    before, served = machine.said("THAWED"), SOCKETS / "theirs.sock"
    words = ["virtnbdbackup", "-n", "-d", machine.name, "-l", "inc" if number else "full", "-o", theirs, "-f", served]
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            eventually(lambda: machine.said("THAWED") > before, "its job has begun", timeout=SLOWLY)
            sums = machine.sums()
            for name, (size, _) in DISKS.items():
                url = f"nbd:unix:{served}:exportname={name}"
                ticket = bench.daemon.add_ticket("", size, url=url, ops=["read"], dirty=number > 0)
                copy = ours / f"{name}.{number}.qcow2"
                more = ["--dirty"] if number else []
                trust = ["--cafile", bench.daemon.cafile, "--format", "qcow2"]
                try:
                    run(*CLIENT, "download", *more, *trust, bench.daemon.url(ticket), copy)
                finally:
                    bench.daemon.remove(ticket)
                if number:
                    below = f"{name}.{number - 1}.qcow2"
                    run("qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", below, copy)
            assert process.poll() is None
        finally:
            machine.release()
        told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told.decode()
    return sums


# Backups that are aborted

Abort = Callable[[Bench, Machine, "subprocess.Popen[bytes]"], None]


def _kill_client(bench: Bench, machine: Machine, process: "subprocess.Popen[bytes]") -> None:
    process.kill()


def _interrupt(bench: Bench, machine: Machine, process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)


def _kill_daemon(bench: Bench, machine: Machine, process: "subprocess.Popen[bytes]") -> None:
    bench.daemon.kill()
    process.wait(SLOWLY)
    bench.daemon.restart()


def _kill_qemu(bench: Bench, machine: Machine, process: "subprocess.Popen[bytes]") -> None:
    machine.kill()
    process.wait(2 * SLOWLY)
    eventually(lambda: machine.state == "shut off", "libvirt still sees that", timeout=SLOWLY)
    machine.start()


def _wait_for_full_scratch(bench: Bench, machine: Machine, process: "subprocess.Popen[bytes]") -> None:
    """Do nothing: it is as small as that in each of these runs."""


ABORTS: dict[str, Abort] = {
    "killed client": _kill_client,
    "SIGINT": _interrupt,
    "killed daemon": _kill_daemon,
    "full scratch disk": _wait_for_full_scratch,
    "killed qemu": _kill_qemu,
}
#: How far a backup is when it is aborted: seconds after its job has begun. None: before that.
MOMENTS = (None, 0.0, 1.0, 3.0)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A small file system."""
    directory = Path("/tmp/scratch")
    directory.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory)
    shutil.chown(directory, "libvirt-qemu")
    yield directory
    run("umount", directory)


@pytest.fixture(scope="module")
def victim(bench: Bench) -> Iterator[Machine]:
    """A machine with one complete backup."""
    with running(bench.machine("victim")) as machine:
        (bench.directory / "victims").mkdir()
        run(*bench.example("full", "victim", bench.directory / "victims", "--sockets", SOCKETS))
        yield machine
        bench.table.set("libvirtd", "hung, and was started anew", str(bench.libvirt.hangs))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("abort", ABORTS)
def test_aborted_backup_leaves_nothing(
    bench: Bench, victim: Machine, scratch: Path, abort: str, moment: float | None
) -> None:
    backups = bench.directory / "victims"
    complete, hangs = sorted(backups.iterdir()), bench.libvirt.hangs
    small = ["--scratch", scratch] if abort == "full scratch disk" else []
    words = bench.example("full", "victim", backups, "--sockets", SOCKETS, *small)
    log = bench.directory / "aborted.log"
    with log.open("wb") as said:
        process = subprocess.Popen(["env", "--default-signal=INT", *words], stdout=said, stderr=said)
    if moment is None:
        eventually(lambda: any(backups.glob("*.part")), "the backup begins", timeout=SLOWLY)
    else:
        eventually(victim.has_job, "its job has begun", timeout=SLOWLY)
        time.sleep(moment)
    ABORTS[abort](bench, victim, process)
    assert process.wait(SLOWLY) != 0, log.read_text()
    assert ("the machine was paused" in log.read_text()) == (abort == "full scratch disk"), log.read_text()
    eventually(lambda: not victim.has_job() and not any(SOCKETS.iterdir()), "nothing is left", timeout=SLOWLY)
    eventually(lambda: sorted(backups.iterdir()) == complete, "no incomplete copy is left", timeout=SLOWLY)
    assert victim.state == "running"
    assert not any(scratch.iterdir())
    assert {path.suffix for path in victim.directory.iterdir()} <= {"", ".qcow2", ".xml"}
    assert [told["url"] for told in bench.daemon.control("GET", "/tickets/").json() if "backup" in told["url"]] == []
    last = complete[-1].name
    if abort == "killed qemu":  # of a machine that is off nothing can be deleted: the next backup does that
        assert last in victim.checkpoints()
    else:
        eventually(lambda: list(victim.checkpoints()) == [last], "the checkpoint of the last one is there")
    victim.goes_on()
    hung = "; libvirtd hung, and was started anew" if bench.libvirt.hangs > hangs else ""
    when = "before the job" if moment is None else f"{moment:g} s after its begin"
    bench.table.set(abort, when, f"nothing left{hung}")


def test_machine_is_backed_up_after_all_that(bench: Bench, victim: Machine) -> None:
    backups = bench.directory / "victims"
    words = bench.example("increment", "victim", backups, "--sockets", SOCKETS)
    refused = subprocess.run(words, capture_output=True, text=True, timeout=SLOWLY, check=False)
    assert refused.returncode == 1
    assert re.fullmatch(r"backup: libvirt: checkpoint inconsistent: .*: a full backup begins anew\n", refused.stderr)
    for kind in ("full", "increment"):
        copy = Path(run(*bench.example(kind, "victim", backups, "--sockets", SOCKETS, "--freeze")).strip())
        for name, expected in victim.sums().items():
            assert bench.restored(copy / f"{name}.qcow2", "raw") == expected
        assert victim.checkpoints() == [copy.name]
        bench.table.set(f"{kind} after all aborted ones", "restored to raw and qcow2", "as the guest had it")
