# SPDX-License-Identifier: Apache-2.0
"""Memory of clusters that are decoded, or written with what is beside the data of a request: bounded for each image."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..ioutil.engine_driver import DEADLINE
from .crash import Recorder
from .disk import Disk, Layer, create, run
from .test_concurrent import together

MIB = 1 << 20
CLUSTER = 2 * MIB
BOUND = 16 * MIB
CLIENTS = 12


class Held:
    """Calls that wait until the test lets them go."""

    def __init__(self) -> None:
        self._leave = threading.Event()
        self._entered = threading.Semaphore(0)

    def call(self) -> None:
        if not self._leave.is_set():
            self._entered.release()
            assert self._leave.wait(DEADLINE)

    @contextmanager
    def let_only(self, most: int) -> Iterator[None]:
        """The clients of the block come so far, and no further."""
        seen: list[bool] = []

        def look() -> None:
            try:
                seen.extend(self._entered.acquire(timeout=DEADLINE) for _ in range(most))
                seen.append(not self._entered.acquire(timeout=0.05))
            finally:
                self._leave.set()

        thread = threading.Thread(target=look)
        thread.start()
        yield
        thread.join()
        assert seen == [True] * (most + 1)


def test_readers_of_compressed_clusters(tmp_path: Path) -> None:
    """Each needs its data and the content: two clusters, or a bit less."""
    raw, path = tmp_path / "raw", tmp_path / "image"
    data = [os.urandom(CLUSTER - 100_000) + bytes(100_000) for _ in range(CLIENTS)]
    raw.write_bytes(b"".join(data))
    run("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", f"cluster_size={CLUSTER}", raw, path)
    recorder, held = Recorder(path, path.read_bytes()), Held()
    with recorder.installed():
        disk = Disk([Layer(path)], writable=False, shared=True)
        disk.read(0, 512)  # the table

        def read(number: int) -> None:
            assert disk.read(number * CLUSTER + 4096, 4096) == data[number][4096:8192]

        recorder.reads = lambda offset, length: held.call()
        with held.let_only(4):
            together(*(lambda number=number: read(number) for number in range(CLIENTS)))
        disk.close()


def test_writers_of_parts_of_clusters(tmp_path: Path) -> None:
    """Each needs one cluster. Those that decode what is below need more, and have it while these hold theirs."""
    raw, below, path = tmp_path / "raw", tmp_path / "below", tmp_path / "image"
    raw.write_bytes(os.urandom(CLUSTER - 100_000) * CLIENTS + bytes(100_000 * CLIENTS))
    run("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", f"cluster_size={CLUSTER}", raw, below)
    create(path, CLIENTS * CLUSTER, f"cluster_size={CLUSTER}", backing=below)
    recorder, held = Recorder(path, path.read_bytes()), Held()
    expected = bytearray(raw.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path, str(below)), Layer(below)], shared=True)

        def hold(name: str) -> None:
            if name == "pwrite":
                held.call()

        recorder.fault = hold
        with held.let_only(BOUND // CLUSTER):
            together(
                *(lambda number=number: disk.write(number * CLUSTER + 512, b"new" * 512) for number in range(CLIENTS))
            )
        for number in range(CLIENTS):
            expected[number * CLUSTER + 512 : number * CLUSTER + 512 + 1536] = b"new" * 512
        assert disk.content() == expected
        disk.close()
