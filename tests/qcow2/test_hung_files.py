# SPDX-License-Identifier: Apache-2.0
"""A file of a chain that hangs, on another file system than the others: images that do not use that go on."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.support.realstorage import shared_memory

from ..ioutil.engine_driver import DEADLINE, Queue, running_engine
from ..ioutil.gate import Gate, gated_engine, installed_gate, submit_reads
from ..ioutil.syscall_table import real_open, replaced
from .disk import Chain, Disk, Layer, create, qemu_io
from .packed import Packed, told_by

MIB = 1 << 20
THREADS, QUOTA = 8, 2


@pytest.fixture
def gate() -> Iterator[Gate]:
    with installed_gate() as gate:
        yield gate


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Make raw files on another file system."""
    shm, made = shared_memory(tmp_path), list[Path]()

    def make(name: str) -> Path:
        path = shm / f"imageio-test-{os.getpid()}-{name}"
        made.append(path)
        path.write_bytes(bytes(MIB))
        return path

    yield make
    for path in made:
        path.unlink()


@pytest.fixture
def chain(tmp_path: Path, elsewhere: Callable[[str], Path]) -> list[Layer]:
    """The first half is in the top, the second one in the file below."""
    below = elsewhere("below")
    top = create(tmp_path / "top", MIB, backing=below, backing_format="raw")
    qemu_io(top, "write -P 1 0 512k")
    return [Layer(top, str(below)), Layer(below, raw=True)]


@pytest.fixture
def beside(tmp_path: Path, elsewhere: Callable[[str], Path]) -> list[Path]:
    """An image on the file system of each file of the chain."""
    path = tmp_path / "beside"
    path.write_bytes(bytes(MIB))
    return [path, elsewhere("beside")]


def reads(queue: Queue, path: Path) -> None:
    handle = queue.open(path)
    queue.run(lib.IOU_READ, handle, 0, 4096, buffer=bytearray(4096))
    queue.run(lib.IOU_FLUSH, handle)
    queue.close_handle(handle)


@pytest.mark.parametrize("hung", [0, 1])
def test_a_file_that_hangs_does_not_stop_the_devices_of_the_others(
    hung: int, chain: list[Layer], beside: list[Path], gate: Gate
) -> None:
    with Disk(chain, writable=False) as disk, gated_engine(gate, THREADS) as engine:
        queue = engine.queue()
        disk.read(0, MIB)  # the table
        gate.hold(chain[hung].path)
        offset = hung * MIB // 2
        cookies = [
            queue.submit(lib.IOU_READ, disk.handle, offset + 4096 * i, 4096, buffer=bytearray(4096)) for i in range(10)
        ]
        gate.wait_for(QUOTA)
        reads(queue, beside[1 - hung])
        assert (engine.stats.busy, engine.stats.queued) == (QUOTA, 10 - QUOTA)
        gate.release()
        assert all(queue.wait(cookie).error == 0 for cookie in cookies)


def test_a_file_below_on_a_hung_device_has_threads_of_its_own(
    chain: list[Layer], beside: list[Path], gate: Gate
) -> None:
    """The device hangs for all: its images and the chain have a quarter each."""
    with Disk(chain, writable=False) as disk, gated_engine(gate, THREADS) as engine:
        queue = engine.queue()
        alone = queue.open(beside[1])
        gate.hold(chain[1].path)
        cookies = submit_reads(queue, alone, 10)
        cookies += [
            queue.submit(lib.IOU_READ, disk.handle, MIB // 2 + 4096 * i, 4096, buffer=bytearray(4096))
            for i in range(10)
        ]
        gate.wait_for(2 * QUOTA)
        reads(queue, beside[0])
        assert engine.stats.busy == 2 * QUOTA
        gate.release()
        assert all(queue.wait(cookie).error == 0 for cookie in cookies)
        queue.close_handle(alone)


def test_a_file_made_of_a_chain_waits_for_its_devices(chain: list[Layer], beside: list[Path], gate: Gate) -> None:
    with Disk(chain, writable=False) as disk, gated_engine(gate, THREADS) as engine:
        queue = engine.queue()
        with Packed(disk, disk.info.size, told_by(disk)) as packed:
            gate.hold(chain[1].path)
            end = packed.info.size
            cookies = [
                queue.submit(lib.IOU_READ, packed.handle, end - 4096 * i, 4096, buffer=bytearray(4096))
                for i in range(1, 11)
            ]
            gate.wait_for(QUOTA)
            reads(queue, beside[0])
            gate.release()
            assert all(queue.wait(cookie).error == 0 for cookie in cookies)


def test_opens_that_hang_on_a_file_below_do_not_stop_the_device_of_the_top(
    chain: list[Layer], beside: list[Path]
) -> None:
    leave, entered = threading.Event(), threading.Semaphore(0)

    def hanging_open(path: str, flags: int) -> int:
        if path == str(chain[1].path):
            entered.release()
            assert leave.wait(DEADLINE)
        return real_open(path, flags)

    with replaced(open=hanging_open), running_engine(THREADS) as engine:
        queue = engine.queue()
        try:
            opens = [queue.submit_open_chain(Chain(chain)) for _ in range(10)]
            for _ in range(QUOTA):
                assert entered.acquire(timeout=DEADLINE)
            reads(queue, beside[0])
            assert (engine.stats.busy, engine.stats.queued) == (QUOTA, 10 - QUOTA)
        finally:
            leave.set()
        for cookie in opens:
            queue.close_handle(queue.wait(cookie).handle)
