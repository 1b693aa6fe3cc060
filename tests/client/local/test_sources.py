# SPDX-License-Identifier: Apache-2.0
"""The table of sources in docs/client.md: what a user may give, and whether it is uploaded or refused with what."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from imageio_daemon.client import ClientError, Settings, upload
from tests.client.local.test_compressed import PACK, packed
from tests.client.local.test_formats import converted, qemu_img
from tests.client.local.test_in_use import mounted
from tests.support.daemon import Daemon
from tests.support.images import MiB, pattern
from tests.support.realstorage import loop_device, missing

SIZE = 63 * MiB
QEMU = "qemu-system-x86_64"
needs_devices = pytest.mark.skipif(bool(missing("ext4")), reason=missing("ext4"))
needs_qemu = pytest.mark.skipif(not shutil.which(QEMU), reason=f"{QEMU} is not installed (Debian: qemu-system-x86)")


@dataclass
class Given:
    """What is uploaded. options: of upload(). ticket: its keys. refused: a part of the message, if it is not."""

    source: Path | BinaryIO
    options: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    ticket: dict[str, Any] = field(default_factory=dict)


Row = Callable[[Path, ExitStack], Given]
ROWS: dict[str, Any] = {}


def row(name: str, *marks: pytest.MarkDecorator) -> Callable[[Row], Row]:
    """Add a row: a function that makes the source of a raw image."""

    def add(make: Row) -> Row:
        ROWS[name] = pytest.param(make, id=name, marks=marks)
        return make

    return add


@row("raw")
def raw(disk: Path, _: ExitStack) -> Given:
    full = disk.with_name("full.raw")
    full.write_bytes(disk.read_bytes())
    return Given(full)


@row("sparse raw")
def sparse(disk: Path, _: ExitStack) -> Given:
    assert disk.stat().st_blocks * 512 < SIZE
    return Given(disk)


def converts_to(name: str, suffix: str) -> Row:
    return lambda disk, _: Given(converted(disk, name).rename(disk.with_name(f"other.{suffix}")))


for image_format, suffix in {"qcow2": "qcow2", "vmdk": "vmdk", "vhdx": "vhdx", "vpc": "vhd", "vdi": "vdi"}.items():
    row(image_format)(converts_to(image_format, suffix))


@row("qcow2 with backing")
def chain(disk: Path, _: ExitStack) -> Given:
    base = converted(disk, "qcow2").rename(disk.with_name("base.qcow2"))
    top = disk.with_name("top.qcow2")
    qemu_img("create", "-f", "qcow2", "-b", base, "-F", "qcow2", top)
    return Given(top)


def archived(suffix: str) -> Row:
    def make(disk: Path, _: ExitStack) -> Given:
        path = disk.with_name(f"appliance.{suffix}")
        with tarfile.open(path, "w") as archive:
            archive.add(converted(disk, "vmdk"), "disk.vmdk")
        return Given(path)

    return make


for suffix in ("ova", "tar"):
    row(suffix)(archived(suffix))


def compresses_to(suffix: str) -> Row:
    return lambda disk, _: Given(packed(disk, suffix))


for suffix in PACK:
    row(suffix)(compresses_to(suffix))


@contextmanager
def piped(path: Path) -> Iterator[BinaryIO]:
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        with open(os.dup(cat.stdout.fileno()), "rb", buffering=0) as pipe:
            cat.stdout.close()
            yield pipe


@row("pipe raw")
def pipe_raw(disk: Path, stack: ExitStack) -> Given:
    return Given(stack.enter_context(piped(disk)), {"size": SIZE})


@row("pipe gz")
def pipe_gz(disk: Path, stack: ExitStack) -> Given:
    return Given(stack.enter_context(piped(packed(disk, "gz"))), {"size": SIZE, "decompress": "gz"})


@row("pipe without a size")
def pipe_without_size(disk: Path, stack: ExitStack) -> Given:
    return Given(stack.enter_context(piped(disk)), refused="size")


@row("block device", needs_devices)
def device(disk: Path, stack: ExitStack) -> Given:
    return Given(stack.enter_context(loop_device(disk)))


@row("mounted device", needs_devices)
def mounted_device(disk: Path, stack: ExitStack) -> Given:
    device = stack.enter_context(loop_device(disk))
    subprocess.check_call(["mkfs.ext4", "-q", "-F", device])
    where = stack.enter_context(mounted(device, disk.with_name("mnt")))
    return Given(device, refused=f"{device} is mounted on {where}: end that first")


@contextmanager
def running(path: Path) -> Iterator[None]:
    """Run a virtual machine with the image as its disk."""
    options = ("-machine", "accel=tcg", "-m", "64", "-nodefaults", "-display", "none", "-qmp", "stdio", "-S")
    with subprocess.Popen(
        [QEMU, *options, "-drive", f"file={path},format=raw,if=virtio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as machine:
        assert machine.stdin is not None
        assert machine.stdout is not None
        assert '"QMP"' in machine.stdout.readline()
        machine.stdin.write('{"execute": "qmp_capabilities"}')
        machine.stdin.flush()
        assert '"return"' in machine.stdout.readline()  # it has opened its disks
        yield
        machine.terminate()


@row("image of a running qemu", needs_qemu)
def of_a_machine(disk: Path, stack: ExitStack) -> Given:
    stack.enter_context(running(disk))
    return Given(disk, refused=rf"{disk} is in use by qemu-system-\S* \(pid [0-9]+\): end that first")


@row("file that shrinks")
def shrinks(disk: Path, _: ExitStack) -> Given:
    """The file becomes shorter while its bytes go, which takes two seconds."""
    disk.write_bytes(pattern(SIZE))
    options = {"progress": lambda progress: os.truncate(disk, MiB)}
    return Given(disk, options, "became shorter|was changed", {"rate": 32 * MiB})


@row("qcow2 without its suffix")
def disguised(disk: Path, _: ExitStack) -> Given:
    return Given(converted(disk, "qcow2").rename(disk.with_name("disk.img")), refused="looks like qcow2: say --format")


@pytest.mark.parametrize("make", ROWS.values())
def test_source_is_uploaded_as_it_is_or_refused(shared_daemon: Daemon, disk: Path, tmp_path: Path, make: Row) -> None:
    target = tmp_path / "target"
    target.touch()
    os.truncate(target, SIZE)
    settings = Settings(cafile=str(shared_daemon.cafile), local=False)
    with ExitStack() as stack:
        given = make(disk, stack)
        url = shared_daemon.url(shared_daemon.add_ticket(target, SIZE, sparse=True, **given.ticket))
        if given.refused is None:
            upload(given.source, url, settings=settings, state=False, **given.options)
            assert target.read_bytes() == disk.read_bytes()
            return
        with pytest.raises(ClientError, match=given.refused):
            upload(given.source, url, settings=settings, state=False, **given.options)
