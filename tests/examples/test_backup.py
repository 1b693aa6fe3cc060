# SPDX-License-Identifier: Apache-2.0
"""examples/backup against a daemon, with a machine that has no guest: fake_libvirt. tests/lab/backup has a real one."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.programs import PROJECT, TIMEOUT, Result, command, environment
from tests.support.daemon import Daemon
from tests.support.images import MiB
from tests.support.polling import eventually

SIZE = 16 * MiB
MACHINE = """\
<domain><devices>
<disk type='file' device='disk'><driver name='qemu' type='{0}'/><source {1}/><target dev='vda'/></disk>
<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><target dev='sda'/><readonly/></disk>
</devices></domain>
"""


#: Runs the example, the first argument, which waits for the end of its job as long as the second one says.
PATIENT = """\
import os, runpy, sys
program, patience = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, os.path.dirname(program))
import backup_guard
backup_guard.END_TIME = float(patience)
runpy.run_path(program, run_name="__main__")
"""


@dataclass(frozen=True)
class Machine:
    """A machine, and what the example is told to back it up. directory: that of the fake, as its docstring says."""

    daemon: Daemon
    directory: Path
    backups: Path

    @property
    def disk(self) -> Path:
        return self.directory / "vda.qcow2"

    def write(self, *commands: str) -> None:
        """Write to the disk, as qemu-io has it."""
        run("qemu-io", "-f", "qcow2", *(word for one in commands for word in ("-c", one)), self.disk)

    def arguments(self, kind: str) -> list[str | Path]:
        where: list[str | Path] = ["--libvirt", f"fake:{self.directory}", "--sockets", self.daemon.directory]
        return [kind, "machine", self.backups, *where, *self.served()]

    def served(self) -> list[str | Path]:
        server = f"https://localhost:{self.daemon.port}"
        return ["--server", server, "--cafile", self.daemon.cafile, "--control", self.daemon.control_socket]

    def back_up(self, kind: str, *more: str) -> Result:
        return self.run_example(*self.arguments(kind), *more)

    def run_example(self, *arguments: str | Path) -> Result:
        words = command("backup", *arguments)
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=self.environment()
        )
        return Result(done.returncode, done.stderr)

    def started(self, kind: str, *, patience: float | None = None) -> "subprocess.Popen[str]":
        """Start the example. patience: seconds for the end of its job."""
        words = command("backup", *self.arguments(kind))
        if patience is not None:
            words[1:2] = ["-c", PATIENT, words[1], str(patience)]
        # However the tests were started: in the background of a shell the signal is ignored.
        default = ["env", "--default-signal=INT", *words]
        return subprocess.Popen(default, stderr=subprocess.PIPE, text=True, env=self.environment())

    def environment(self) -> dict[str, str]:
        return {**environment(), "PYTHONPATH": str(PROJECT / "tests/examples/fake_libvirt")}

    def last(self) -> Path:
        """Return the image of the last complete backup."""
        return max(self.backups.glob("backup-*")) / "vda.qcow2"

    def restored(self, backup: Path, target: Path, format_name: str) -> None:
        """Restore a backup into a new image."""
        run("qemu-img", "create", "-q", "-f", format_name, target, str(SIZE))
        result = self.run_example("restore", backup, target, "--format", format_name, *self.served())
        assert result.status == 0, result

    def checkpoints(self) -> list[str]:
        told = run("qemu-img", "info", "--force-share", self.disk)
        return re.findall(r"name: (backup-\S+)", told)

    def is_left_alone_soon(self) -> None:
        """Check the same when the guard, which nobody waits for, has ended."""
        eventually(lambda: not (self.directory / "job").exists() and len(self.checkpoints()) == 1, "the job ends")
        eventually(lambda: not list(self.backups.glob("*.part")), "the incomplete backup goes")
        self.is_left_alone()

    def is_left_alone(self) -> None:
        """Check that nothing of a backup job is there, nor of an incomplete backup."""
        assert not (self.directory / "job").exists()
        assert not (self.directory / "frozen").exists()
        assert not (self.directory / "paused").exists()
        assert list(self.daemon.directory.glob("*.sock")) == []
        assert list(self.backups.glob("*.part")) == []
        assert not [told for told in self.daemon.control("GET", "/tickets/").json() if "exportname=vda" in told["url"]]
        assert self.checkpoints() == sorted(path.name for path in self.backups.glob("backup-*"))[-1:]


def run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture
def machine(daemon: Daemon, tmp_path: Path) -> Machine:
    """A machine with some data on its disk."""
    made = Machine(daemon, tmp_path / "machine", tmp_path / "backups")
    made.directory.mkdir()
    made.backups.mkdir()
    (made.directory / "machine.xml").write_text(MACHINE.format("qcow2", "file='/images/vda.qcow2'"))
    run("qemu-img", "create", "-q", "-f", "qcow2", made.disk, str(SIZE))
    made.write("write -P 1 0 4M", "write -P 2 8M 1M")
    return made


@pytest.fixture
def backed_up(machine: Machine) -> Machine:
    """The same with a full backup, and a state of its disk beside that."""
    result = machine.back_up("full")
    assert result.status == 0, result
    return machine


@pytest.mark.parametrize("format_name", ["raw", "qcow2"])
def test_each_backup_of_a_chain_is_restored_as_the_disk_was(machine: Machine, tmp_path: Path, format_name: str) -> None:
    kept = {}
    changes = [
        [],
        ["write -P 3 2M 100k", "write -P 4 15M 1M"],
        ["write -z 0 1M", "discard 8M 512k", "write -P 5 70k 1k"],
    ]
    for number, commands in enumerate(changes):
        machine.write(*commands)
        state = tmp_path / f"state.{number}"
        run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", machine.disk, state)
        result = machine.back_up("increment" if number else "full")
        assert result.status == 0, result
        kept[machine.last()] = state
    assert len(kept) == 3
    for number, (backup, state) in enumerate(kept.items()):
        target = tmp_path / f"restored.{number}"
        machine.restored(backup, target, format_name)
        run("qemu-img", "compare", "-f", "raw", "-F", format_name, state, target)


def test_increment_has_what_has_changed_alone(backed_up: Machine) -> None:
    backed_up.write("write -P 3 2M 64k")
    assert backed_up.back_up("increment").status == 0
    assert backed_up.last().stat().st_size < MiB


def test_checkpoint_of_the_last_backup_stays_alone(backed_up: Machine) -> None:
    backed_up.is_left_alone()
    assert backed_up.back_up("increment").status == 0
    backed_up.is_left_alone()


def test_checkpoint_without_its_bitmap_goes(backed_up: Machine) -> None:
    lost = backed_up.directory / "backup-lost"
    lost.touch()
    assert backed_up.back_up("full").status == 0
    assert not lost.exists()
    backed_up.is_left_alone()


def test_frozen_file_systems_go_on(backed_up: Machine) -> None:
    (backed_up.directory / "agent").touch()
    assert backed_up.back_up("increment", "--freeze").status == 0
    backed_up.is_left_alone()


# Whatever ends it, nothing is left


@pytest.mark.parametrize("kind", ["full", "increment"])
def test_killed_backup_leaves_nothing(backed_up: Machine, kind: str) -> None:
    with stopped(backed_up.daemon), backed_up.started(kind) as process:
        eventually(lambda: list(backed_up.backups.glob("*.part")) and job_runs(backed_up), "the job runs")
        process.kill()
    backed_up.is_left_alone_soon()


def test_killed_while_libvirt_begins_the_job(backed_up: Machine) -> None:
    held = backed_up.directory / "held"
    os.mkfifo(held)
    with backed_up.started("increment") as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        process.kill()
    held.write_text("")
    backed_up.is_left_alone_soon()


def test_unit_that_is_stopped_leaves_nothing(backed_up: Machine) -> None:
    """A service manager sends the signal to all processes."""
    with stopped(backed_up.daemon), backed_up.started("increment") as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (*map(int, children), process.pid):
            os.kill(pid, signal.SIGTERM)
    assert len(children) == 1
    backed_up.is_left_alone_soon()


def test_libvirt_that_hangs_is_told_and_the_job_ends_later(backed_up: Machine) -> None:
    hangs = backed_up.directory / "hangs"
    with stopped(backed_up.daemon), backed_up.started("increment", patience=0.1) as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        os.mkfifo(hangs)
        backed_up.daemon.send_signal(signal.SIGCONT)
        assert process.wait(TIMEOUT) == 1
        with hangs.open("w"):
            hangs.unlink()
        assert process.stderr is not None
        text = process.stderr.read()
    assert "backup: libvirt does not answer" in text
    assert text.endswith("backup: the backup is complete, but its job has not ended\n")
    backed_up.is_left_alone_soon()


def test_interrupted_backup_leaves_nothing(backed_up: Machine) -> None:
    with stopped(backed_up.daemon), backed_up.started("increment") as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        process.send_signal(signal.SIGINT)
        backed_up.daemon.send_signal(signal.SIGCONT)
        _, text = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, text) == (1, "backup: interrupted\n")
    backed_up.is_left_alone()


def test_machine_that_is_paused_for_want_of_scratch_goes_on(backed_up: Machine) -> None:
    with stopped(backed_up.daemon), backed_up.started("increment") as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        paused = backed_up.directory / "paused"
        paused.touch()
        eventually(lambda: not paused.exists(), "the machine goes on")
        backed_up.daemon.send_signal(signal.SIGCONT)
        _, text = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert "backup: the machine was paused, since there is no room for its scratch data" in text
    backed_up.is_left_alone()


def test_machine_that_was_ended_leaves_nothing(backed_up: Machine) -> None:
    with stopped(backed_up.daemon), backed_up.started("increment") as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        (backed_up.directory / "undefined").touch()
        os.kill(int((backed_up.directory / "pid").read_text()), signal.SIGKILL)
        backed_up.daemon.send_signal(signal.SIGCONT)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert list(backed_up.daemon.directory.glob("*.sock")) == []


def test_next_backup_goes_on_from_the_last_complete_one(backed_up: Machine, tmp_path: Path) -> None:
    with stopped(backed_up.daemon), backed_up.started("increment") as process:
        eventually(lambda: job_runs(backed_up), "the job runs")
        process.kill()
    backed_up.is_left_alone_soon()
    backed_up.write("write -P 9 3M 1M")
    assert backed_up.back_up("increment").status == 0
    backed_up.restored(backed_up.last(), tmp_path / "restored", "raw")
    run("qemu-img", "compare", "-f", "qcow2", "-F", "raw", backed_up.disk, tmp_path / "restored")


# What is refused, and the one line that tells


def test_increment_needs_a_backup_before(machine: Machine) -> None:
    refused(machine.back_up("increment"), "has no backup that an increment could go on from: begin with a full one")
    machine.is_left_alone()


def test_increment_needs_its_checkpoint(backed_up: Machine) -> None:
    run("qemu-img", "bitmap", "--remove", backed_up.disk, backed_up.checkpoints()[0])
    refused(backed_up.back_up("increment"), "libvirt: Domain checkpoint not found: .*: a full backup begins anew")


def test_full_backup_begins_anew(backed_up: Machine) -> None:
    run("qemu-img", "bitmap", "--remove", backed_up.disk, backed_up.checkpoints()[0])
    assert backed_up.back_up("full").status == 0
    backed_up.is_left_alone()


def test_unknown_machine_is_told(machine: Machine) -> None:
    shutil.rmtree(machine.directory)
    refused(machine.back_up("full"), "libvirt: there is no ")


def test_machine_that_does_not_run_is_refused(machine: Machine) -> None:
    (machine.directory / "stopped").touch()
    refused(machine.back_up("full"), "machine is not running")


def test_raw_disk_is_refused(machine: Machine) -> None:
    (machine.directory / "machine.xml").write_text(MACHINE.format("raw", "file='/images/vda.raw'"))
    refused(machine.back_up("full"), "the disk vda is not qcow2")


def test_scratch_data_of_a_device_needs_a_place(machine: Machine) -> None:
    (machine.directory / "machine.xml").write_text(MACHINE.format("qcow2", "dev='/dev/group/vda'"))
    refused(machine.back_up("full"), "the disk vda is a device: --scratch names a directory")
    assert machine.back_up("full", "--scratch", str(machine.directory)).status == 0


def test_missing_agent_is_told(machine: Machine) -> None:
    refused(machine.back_up("full", "--freeze"), "libvirt: QEMU guest agent is not configured")
    machine.is_left_alone()


def test_missing_daemon_is_told(machine: Machine) -> None:
    refused(machine.back_up("full", "--control", "/no/such/socket"), "No such file or directory")
    assert list(machine.backups.iterdir()) == []


def test_refused_ticket_is_told(machine: Machine) -> None:
    result = machine.back_up("full", "--control", machine.daemon.local_socket)  # which is another service
    refused(result, "imageio-daemon refuses a ticket: ")
    assert list(machine.backups.iterdir()) == []


def refused(result: Result, pattern: str) -> None:
    assert result.status == 1, result
    assert re.fullmatch(f"backup: [^\n]*{pattern}[^\n]*\n", result.text), result


def job_runs(machine: Machine) -> bool:
    return (machine.directory / "job").exists()


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """Let the daemon answer nothing, so that a backup can be ended in its middle."""
    daemon.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.send_signal(signal.SIGCONT)
