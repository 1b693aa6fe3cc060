# SPDX-License-Identifier: Apache-2.0
"""Storage that a kernel with all of its modules can make; for the checks in the virtual machine."""

import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.polling import eventually

MiB = 1024**2
#: Of each device.
SIZE = 16 * MiB
SECTOR = 512
#: Of a device for a file system; xfs wants 300 MiB.
FILESYSTEM = 320 * MiB

_names = (f"lab{number}" for number in itertools.count())
#: Modules of device-mapper targets that have not the target's name.
_TARGETS = {"linear": "dm-mod"}


def run(*command: object) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def new_name() -> str:
    """Return a name that nothing else has."""
    return next(_names)


def configfs() -> Path:
    """Return where modules are configured."""
    path = Path("/sys/kernel/config")
    if not path.is_mount():
        run("mount", "-t", "configfs", "configfs", path)
    return path


class ScsiDisk:
    """A disk of the kernel's SCSI simulator, in memory."""

    def __init__(self, address: str, path: Path) -> None:
        self.path = path
        self._block = Path("/sys/block", path.name)
        self._disk = Path("/sys/class/scsi_disk", address)
        self._errors = Path("/sys/kernel/debug/scsi_debug", address, "error")

    def fail(self, command: int, sense: str, *, times: int = 1000) -> None:
        """Let a SCSI command end with sense key, ASC and ASCQ."""
        self._errors.write_text(f"2 -{times} {command:#x} 0 0 0x2 {sense}")

    def heal(self, command: int) -> None:
        """Take back fail()."""
        self._errors.write_text(f"- 2 {command:#x}")

    def hang(self, command: int, *, times: int = 1000) -> None:
        """Let a SCSI command have no answer."""
        self._errors.write_text(f"0 -{times} {command:#x}")

    def answer(self, command: int) -> None:
        """Take back hang()."""
        self._errors.write_text(f"- 0 {command:#x}")

    def be_impatient(self, *, offline_after: int) -> None:
        """Let the kernel wait a second for each command, and give up the disk after so many that have no answer."""
        for name in ("timeout", "eh_timeout"):
            (self._block / "device" / name).write_text("1")
        (self._disk / "max_retries").write_text("1")
        (self._disk / "max_medium_access_timeouts").write_text(str(offline_after))

    @property
    def state(self) -> str:
        """Return what the kernel thinks of the disk."""
        return (self._block / "device/state").read_text().strip()


@contextlib.contextmanager
def scsi_disk(*parameters: str, zeroing_mode: str = "") -> Iterator[ScsiDisk]:
    """Make a SCSI disk. zeroing_mode: what the driver is told to zero with; else it asks the disk."""
    run("modprobe", "sd_mod")
    run("modprobe", "scsi_debug", f"dev_size_mb={SIZE // MiB}", "lbprz=1", "delay=0", *parameters)
    try:
        pattern = "adapter0/host*/target*/*/block/*"
        found = Path("/sys/bus/pseudo/drivers/scsi_debug")
        eventually(lambda: list(found.glob(pattern)), "the disk is there")
        (block,) = found.glob(pattern)
        address = block.parent.parent.name
        path = Path("/dev", block.name)
        eventually(path.exists, "its node is there")
        if zeroing_mode:
            Path("/sys/class/scsi_disk", address, "zeroing_mode").write_text(zeroing_mode)
            Path("/sys/class/scsi_disk", address, "max_write_same_blocks").write_text("0")
        yield ScsiDisk(address, path)
    finally:
        run("modprobe", "-r", "scsi_debug")


@contextlib.contextmanager
def null_disk(**attributes: object) -> Iterator[Path]:
    """Make a null_blk device that keeps what is written."""
    run("modprobe", "null_blk", "nr_devices=0")
    directory = configfs() / "nullb" / next(_names)
    directory.mkdir()
    try:
        for name, value in {"size": SIZE // MiB, "memory_backed": 1, **attributes, "power": 1}.items():
            (directory / name).write_text(str(value))
        path = Path("/dev", directory.name)
        if not path.exists():
            path = Path(f"/dev/nullb{(directory / 'index').read_text().strip()}")
        yield path
    finally:
        directory.rmdir()


@contextlib.contextmanager
def plain_file(size: int = SIZE) -> Iterator[Path]:
    """Make a file with nothing allocated."""
    path = Path("/var/tmp", next(_names))
    with path.open("wb") as file:
        file.truncate(size)
    try:
        yield path
    finally:
        path.unlink()


@contextlib.contextmanager
def loop_disk(size: int = SIZE) -> Iterator[Path]:
    """Make a device of a file."""
    run("modprobe", "loop")
    with plain_file(size) as backing:
        device = Path(run("losetup", "--find", "--show", backing))
        try:
            yield device
        finally:
            run("losetup", "--detach", device)


class Mapped:
    """A device-mapper device, whose table may be changed while it is used."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = Path("/dev/mapper", name)

    def load(self, table: str) -> None:
        """Use another table from now on."""
        run("dmsetup", "suspend", "--nolockfs", "--noudevsync", self.name)
        run("dmsetup", "load", self.name, "--table", table)
        run("dmsetup", "resume", "--noudevsync", self.name)

    def mark(self, text: str) -> None:
        """Put a mark into the log of a log-writes device."""
        run("dmsetup", "message", self.name, 0, "mark", text)


@contextlib.contextmanager
def mapped(table: str) -> Iterator[Mapped]:
    """Make a device-mapper device."""
    target = table.split()[2]
    run("modprobe", _TARGETS.get(target, f"dm-{target}"))
    device = Mapped(next(_names))
    run("dmsetup", "create", device.name, "--noudevsync", "--table", table)
    run("dmsetup", "mknodes", device.name)
    try:
        yield device
    finally:
        run("dmsetup", "remove", "--noudevsync", "--retry", device.name)


@contextlib.contextmanager
def snapshot(device: Path, size: int) -> Iterator[Path]:
    """Make a device with the same content, whose changes are not those of the first."""
    with loop_disk() as changes, mapped(f"0 {size // SECTOR} snapshot {device} {changes} N 8") as made:
        yield made.path


class FlakyDisk:
    """A disk that works, until told otherwise."""

    def __init__(self, device: Mapped, below: Path, size: int) -> None:
        self.path = device.path
        self._sectors = size // SECTOR
        self._device = device
        self._below = below

    def break_writes(self) -> None:
        """Let every write fail."""
        self._misbehave("error_writes")

    def drop_writes(self) -> None:
        """Answer every write as if it had been done, and do nothing."""
        self._misbehave("drop_writes")

    def corrupt_writes(self) -> None:
        """Write another byte than the first of each request."""
        self._misbehave("corrupt_bio_byte 1 w 1 0")

    def _misbehave(self, features: str) -> None:
        table = f"0 {self._sectors} flakey {self._below} 0 0 3600"
        self._device.load(f"{table} {len(features.split())} {features}")

    def heal(self) -> None:
        """Let it work again."""
        self._device.load(f"0 {self._sectors} linear {self._below} 0")


@contextlib.contextmanager
def flaky_disk(size: int = FILESYSTEM) -> Iterator[FlakyDisk]:
    """Make a disk whose writes can be made to fail or to be lost."""
    run("modprobe", "dm-flakey")
    with loop_disk(size) as below, mapped(f"0 {size // SECTOR} linear {below} 0") as device:
        yield FlakyDisk(device, below, size)


@contextlib.contextmanager
def mounted(filesystem: str, device: Path, *, make: bool = True) -> Iterator[Path]:
    """Mount a device, with a new file system unless make is False."""
    if make:
        run(f"mkfs.{filesystem}", "-q", *(("-f",) if filesystem == "xfs" else ("-F",)), device)
    target = Path("/tmp", next(_names))
    target.mkdir()
    run("mount", device, target)
    try:
        yield target
    finally:
        run("umount", target)
        target.rmdir()


class NfsServer:
    """The kernel's NFS server, of one version, with one exported directory."""

    def __init__(self, options: tuple[str, ...]) -> None:
        self._options = options

    def start(self) -> None:
        run("rpc.nfsd", *self._options, "--no-udp", "--tcp", "2")
        Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")

    def stop(self) -> None:
        run("rpc.nfsd", "0")


@contextlib.contextmanager
def rpcbind() -> Iterator[None]:
    """Run what tells the ports of NFS 3."""
    daemon = subprocess.Popen(["rpcbind", "-f"])
    try:
        eventually(Path("/run/rpcbind.sock").exists, "it answers")
        yield
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def nfs_server(directory: Path, version: str = "4.2") -> Iterator[NfsServer]:
    """Export a directory to this host by NFS 3 or 4.2; 3 needs rpcbind."""
    run("modprobe", "nfsd")
    run("modprobe", f"nfsv{version[0]}")
    run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
    for name in ("nfsv4gracetime", "nfsv4leasetime"):
        Path("/proc/fs/nfsd", name).write_text("10")
    Path("/var/lib/nfs/v4recovery").mkdir(parents=True, exist_ok=True)
    for name in ("etab", "rmtab"):
        Path("/var/lib/nfs", name).touch()
    other = ("--no-nfs-version", "4" if version == "3" else "3")
    server = NfsServer(other)
    run("exportfs", "-o", "rw,no_root_squash,insecure,sync,fsid=0,no_subtree_check", f"127.0.0.1:{directory}")
    mountd = subprocess.Popen(["rpc.mountd", "--foreground", *other])
    try:
        server.start()
        yield server
        server.stop()
    finally:
        mountd.terminate()
        mountd.wait()
        run("exportfs", "-ua")
        run("umount", "/proc/fs/nfsd")


@contextlib.contextmanager
def nfs_mounted(*options: str, version: str = "4.2", exported: Path = Path("/")) -> Iterator[Path]:
    """Mount what the NFS server exports; by NFS 3 its path has to be told."""
    target = Path("/tmp", next(_names))
    target.mkdir()
    run("mount", "-t", "nfs", "-o", ",".join((f"vers={version}", *options)), f"127.0.0.1:{exported}", target)
    try:
        yield target
    finally:
        run("umount", "-f", target)
        target.rmdir()
