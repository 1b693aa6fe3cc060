# SPDX-License-Identifier: Apache-2.0
"""The servers that benchmarks.seeds compares: ours with its own engine for qcow2, qemu-nbd in two ways, and nbdkit."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nbdcases import Server, run
from benchmarks.servers import OVIRT_IMAGEIO
from benchmarks.servers import Server as Daemon
from tests.support.nbdservers import NbdServer, nbdkit, qemu_nbd

OURS = "imageio-daemon"
#: qemu-nbd as production runs it, by both of its ways to storage.
QEMU = ("qemu-nbd native", "qemu-nbd io_uring")


@contextmanager
def served(name: str, daemon: Daemon, image: Path, size: int) -> Iterator[Server]:
    """Serve a qcow2 image by OURS or one of QEMU. When this ends, all of it is in the file."""
    if name == OURS:
        ticket = daemon.add_ticket(image, size, format="qcow2", shared=False)
        yield Server(name, uri_of(daemon, ticket), daemon.pid)
        daemon.remove_ticket(ticket)
        return
    with qemu_nbd(image, "qcow2", "--cache=none", f"--aio={name.split()[1]}") as server:
        assert server.process is not None
        yield Server(name, server.uri, server.process.pid)
        server.stop()


@contextmanager
def passed_on(daemon: Daemon, uri: str, size: int) -> Iterator[str]:
    """Yield the URI of a ticket for what another NBD server has."""
    ticket = daemon.add_ticket(uri, size)
    yield uri_of(daemon, ticket)
    daemon.remove_ticket(ticket)


def uri_of(daemon: Daemon, ticket: str) -> str:
    """Return where the NBD service has a ticket."""
    return f"nbd+unix:///{ticket}?socket={daemon.directory}/nbd"


def new_qcow2(path: Path, size: int, *options: str) -> Path:
    """Make an image, in place of one that was there. options: of qemu-img's -o."""
    path.unlink(missing_ok=True)
    run("qemu-img", "create", "-q", "-f", "qcow2", *(["-o", ",".join(options)] if options else []), path, size)
    return path


@dataclass(frozen=True)
class Zeroing:
    """What a server of memory can do with zeros. options: of nbdkit."""

    name: str
    filters: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    def serve(self, size: int) -> AbstractContextManager[NbdServer]:
        """Run the server."""
        return nbdkit(*(f"--filter={name}" for name in self.filters), "memory", str(size), *self.parameters)


ZEROING = (
    Zeroing("fast"),
    Zeroing("fast, without fast zero", ("nozero",), ("zeromode=plugin", "fastzeromode=none")),
    Zeroing(
        "20 ms each, without fast zero",
        ("nozero", "delay"),
        ("zeromode=plugin", "fastzeromode=none", "delay-zero=20ms"),
    ),
    Zeroing("none", ("nozero",)),
)


def missing() -> dict[str, str]:
    """Return what cannot be measured on this machine, and why."""
    programs = ("fio", "nbdcopy", "nbdkit", "qemu-nbd")
    found = {name: "is not installed" for name in programs if shutil.which(name) is None}
    if not OVIRT_IMAGEIO.exists():
        found["ovirt-imageio"] = "is not installed: benchmarks/setup does that"
    if not Path("/sys/module/nbd").exists():
        found["kernel NBD"] = "the kernel has no module nbd, or has not loaded it"
    return found | dict.fromkeys(("ublk", "VDUSE"), "runs in the lab's guest only (tests/lab/guest_devices.py)")
