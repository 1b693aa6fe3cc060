# SPDX-License-Identifier: Apache-2.0
"""Zeros of one request, on NFS, that are longer than what servers and kernels take at once: no old content is left."""

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import CommandFlag
from tests.soak.lines import NbdLine
from tests.support.http_client import connect_unix

from .kernel_stacked import zfs_directory
from .kernel_storage import FILESYSTEM, MiB, loop_disk, mounted, nfs_mounted, nfs_server, rpcbind, run
from .small_daemon import Daemon, running_daemon

GiB = 1024 * MiB
#: What stands in the image before: in 4 KiB at each of these steps, at the edges of the range, and on both its sides.
OLD, STEP = b"old content " * 341 + b"\n" * 4, 32 * MiB
#: Where the zeroed range begins: at no border of anything.
START = MiB + 4096
#: Seconds for a request: 4 GiB are written to a server that the same emulated processor runs.
PATIENCE = 900.0

Make = Callable[[], AbstractContextManager[Path]]


@contextlib.contextmanager
def nfs_3() -> Iterator[Path]:
    """Mount by NFS 3, which has no request for zeros: they are written. ZFS compresses them to nothing."""
    with zfs_directory() as directory, rpcbind(), nfs_server(directory, "3"):
        with nfs_mounted("nolock", version="3", exported=directory) as mount:
            yield mount


@contextlib.contextmanager
def nfs_4() -> Iterator[Path]:
    """Mount by NFS 4.2, which has requests to deallocate and to allocate."""
    run("modprobe", "xfs")
    with loop_disk(FILESYSTEM) as device, mounted("xfs", device) as directory, nfs_server(directory):
        with nfs_mounted("hard") as mount:
            yield mount


MOUNTS: dict[str, Make] = {"nfs 3": nfs_3, "nfs 4.2": nfs_4}
#: What is zeroed: on which mount, in how long a request, and whether the range may become a hole. No 4 GiB are
#: allocated: there is no such disk.
CASES = [
    (name, length, sparse)
    for name in MOUNTS
    for length, sparse in ((128 * MiB, True), (128 * MiB, False), (4 * GiB, True))
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as daemon:
        yield daemon


def zero_by_http(daemon: Daemon, length: int, *, sparse: bool) -> None:
    """Zero by one request."""
    daemon.patch("image", f'{{"op": "zero", "offset": {START}, "size": {length}}}', timeout=PATIENCE)


def zero_by_nbd(daemon: Daemon, length: int, *, sparse: bool) -> None:
    """Zero by as few requests as there can be: their lengths have 32 bits."""
    line = NbdLine(connect_unix(str(daemon.nbd), timeout=PATIENCE), "image", random.Random(1))
    offset, end = START, START + length
    while offset < end:
        count = min(end - offset, 4 * GiB - 4096)
        line.send(line.request_zero(offset, count, 0 if sparse else CommandFlag.NO_HOLE))
        assert line.answer()
        offset += count
    line.close()


def marks(length: int) -> dict[int, bool]:
    """Return where old content is written, and whether it has to be gone afterwards."""
    inside = [*range(START, START + length - len(OLD), STEP), START + length - len(OLD)]
    return {START - len(OLD): False, START + length: False} | dict.fromkeys(inside, True)


@pytest.mark.parametrize("zero", [zero_by_http, zero_by_nbd])
@pytest.mark.parametrize(("name", "length", "sparse"), CASES)
def test_no_old_content_is_left(
    daemon: Daemon, name: str, length: int, sparse: bool, zero: Callable[..., None]
) -> None:
    with MOUNTS[name]() as mount:
        image = mount / "image"
        with image.open("wb") as file:
            file.truncate(length + 4 * MiB)
            for offset in marks(length):
                file.seek(offset)
                file.write(OLD)
        daemon.add_ticket("image", image, length + 4 * MiB, sparse=sparse)
        zero(daemon, length, sparse=sparse)
        daemon.patch("image", '{"op": "flush"}', timeout=PATIENCE)
        daemon.remove_ticket("image")
        run("sh", "-c", "echo 3 >/proc/sys/vm/drop_caches")
        with image.open("rb") as file:
            for offset, gone in marks(length).items():
                file.seek(offset)
                assert file.read(len(OLD)) == (bytes(len(OLD)) if gone else OLD), offset - START
