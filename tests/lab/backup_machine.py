# SPDX-License-Identifier: Apache-2.0
"""libvirt without a service manager, and machines of it whose guest writes: for the checks of tests/lab/backup."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.polling import eventually

MiB = 1 << 20
#: Disks of a machine: bytes, and how many of them are data at first.
DISKS = {"vda": (64 * MiB, 24 * MiB), "vdb": (32 * MiB, 8 * MiB)}
#: Seconds for what the guest does, which is emulated.
SLOWLY = 180.0
#: Seconds in which libvirtd tells the state of a machine, or hangs: longer than it waits for a lock of its own, 30 s.
HANGS = 60.0
#: What virtio needs of the kernel's modules.
MODULES = ("virtio_pci", "virtio_blk", "virtio_console")

#: Nothing that needs cgroups, MAC or another service. qemu runs as the user of its package.
CONFIG = """\
security_driver = "none"
stdio_handler = "file"
namespaces = []
cgroup_controllers = []
remember_owner = 0
"""

MACHINE = """\
<domain type='qemu'>
  <name>{name}</name><memory unit='MiB'>192</memory><vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{kernel}</kernel><initrd>{initrd}</initrd><cmdline>console=ttyS0 loglevel=1 panic=1 {words}</cmdline>
  </os>
  <on_crash>destroy</on_crash>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' discard='unmap'/><source file='{directory}/vda.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' discard='unmap'/><source file='{directory}/vdb.qcow2'/>
      <target dev='vdb' bus='virtio'/>
    </disk>
    <serial type='file'><source path='{directory}/console' append='on'/></serial>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <channel type='unix'>
      <source mode='bind' path='{directory}/held'/><target type='virtio' name='lab.held'/>
    </channel>
    <memballoon model='none'/>
  </devices>
</domain>
"""


def run(*command: object, timeout: float = 300, check: bool = True) -> str:
    """Run a program, and return what it says."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


class Libvirt:
    """libvirtd, with nothing of an earlier run. hangs: how often it hung, and was started anew."""

    def __init__(self, results: Path) -> None:
        Path("/etc/libvirt/qemu.conf").write_text(CONFIG)
        for left in (Path("/etc/libvirt/qemu"), Path("/var/lib/libvirt/qemu/checkpoint")):
            shutil.rmtree(left, ignore_errors=True)
        self.hangs = 0
        self._results = results
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        with (self._results / "libvirtd.log").open("ab") as log:
            process = subprocess.Popen(["libvirtd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(
            lambda: subprocess.run(["virsh", "list"], capture_output=True, check=False).returncode == 0, "libvirt runs"
        )
        return process

    def state(self, machine: str) -> str:
        """Return the state of a machine. If libvirtd does not even tell that, it is started anew: "hung".

        libvirt 9.0: when qemu ends while qemuBackupBegin() undoes what it has begun, that waits in
        qemuDomainObjExitMonitor() for the machine's lock. qemuProcessStop() has it, and waits in qemuMonitorClose() for
        the monitor's lock, which nobody gives back: the first one has looked for the monitor after it was taken away.
        """
        try:
            return run("virsh", "domstate", machine, timeout=HANGS).strip()
        except subprocess.TimeoutExpired:
            self.hangs += 1
            self._note_threads()
            self._process.kill()
            self._process.wait()
            self._process = self._started()
            return "hung"

    def _note_threads(self) -> None:
        """Keep where its threads wait."""
        threads = sorted(Path(f"/proc/{self._process.pid}/task").iterdir())
        told = [
            " ".join((path / name).read_text().strip() for name in ("comm", "wchan", "syscall")) for path in threads
        ]
        (self._results / f"hang.{self.hangs}").write_text("\n".join(told))


def make_initrd(path: Path) -> Path:
    """Make the initrd of the guest from the programs and the kernel of this tree, and return the kernel."""
    (kernel,) = Path("/boot").glob("vmlinuz-*")
    release = kernel.name.removeprefix("vmlinuz-")
    tree = path.with_suffix(".tree")
    for name in ("bin", "dev", "proc", "sys", "tmp", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin")
    shutil.copy(Path(__file__).with_name("backup_guest.sh"), tree / "init")
    (tree / "init").chmod(0o755)
    told = [run("modprobe", "--set-version", release, "--show-depends", module) for module in MODULES]
    files = dict.fromkeys(re.findall(r"^insmod (\S+)", "".join(told), re.MULTILINE))
    for number, file in enumerate(files):
        shutil.copy(file, tree / "modules" / f"{number:02}.ko")
    packed = f"cd {tree} && find . | cpio --create --format=newc --quiet | gzip -1 > {path}"
    run("sh", "-ec", packed)
    return kernel


class Machine:
    """A running machine. held: its answers to a thaw wait for release()."""

    def __init__(
        self, libvirt: Libvirt, name: str, directory: Path, kernel: Path, initrd: Path, *, held: bool = False
    ) -> None:
        self.name = name
        self._libvirt = libvirt
        self.directory = directory
        self._console = directory / "console"
        directory.mkdir()
        self._make_disks()
        described = MACHINE.format(
            name=name, kernel=kernel, initrd=initrd, directory=directory, words="held" if held else ""
        )
        (directory / "machine.xml").write_text(described)
        run("virsh", "define", directory / "machine.xml")
        self.start()

    def _make_disks(self) -> None:
        for name, (size, data) in DISKS.items():
            raw = self.directory / f"{name}.raw"
            raw.write_bytes(os.urandom(data))
            os.truncate(raw, size)
            run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, self.directory / f"{name}.qcow2")
            raw.unlink()
        user = pwd.getpwnam("libvirt-qemu")
        for path in (self.directory, *self.directory.glob("*.qcow2")):
            os.chown(path, user.pw_uid, user.pw_gid)

    def start(self) -> None:
        """Start it, and wait until its guest is ready."""
        before = self.said("READY")
        run("virsh", "start", self.name)
        eventually(lambda: self.said("READY") > before, "the guest is ready", timeout=SLOWLY)

    def end(self) -> None:
        """End it, and forget it."""
        run("virsh", "destroy", self.name, check=False)
        run("virsh", "undefine", self.name, "--checkpoints-metadata")

    # The guest

    @property
    def console(self) -> str:
        return self._console.read_text(errors="replace") if self._console.exists() else ""

    def said(self, word: str) -> int:
        """Return how often the guest has said a word at the beginning of a line."""
        return len(re.findall(rf"^{word}\b", self.console, re.MULTILINE))

    def sums(self) -> dict[str, str]:
        """Return the checksums of its disks as the guest has told them when it was frozen last."""
        found = re.findall(r"^SUM (\w+) ([0-9a-f]{64})\b", self.console, re.MULTILINE)
        return dict(found[-len(DISKS) :])

    def goes_on(self) -> None:
        """Wait until the guest has written, and check that no write of it has ever failed."""
        before = self.said("WROTE")
        eventually(lambda: self.said("WROTE") > before + 3, "the guest writes", timeout=SLOWLY)
        assert self.said("FAILED") == 0, self.console[-2000:]

    def release(self) -> None:
        """Let the guest answer to the thaw that waits."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(str(self.directory / "held"))
            channel.sendall(b"go\n")

    # libvirt

    @property
    def state(self) -> str:
        return self._libvirt.state(self.name)

    def has_job(self) -> bool:
        words = ["virsh", "backup-dumpxml", self.name]
        return subprocess.run(words, capture_output=True, timeout=SLOWLY, check=False).returncode == 0

    def checkpoints(self) -> Sequence[str]:
        return run("virsh", "checkpoint-list", self.name, "--name").split()

    def kill(self) -> None:
        """End its qemu as a crash does."""
        os.kill(int(Path(f"/run/libvirt/qemu/{self.name}.pid").read_text()), signal.SIGKILL)
        eventually(lambda: self.state == "shut off", "libvirt sees that", timeout=SLOWLY)
