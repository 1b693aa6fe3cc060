# SPDX-License-Identifier: Apache-2.0
"""Several threads on one cluster, and on one image: no half is lost, nobody sees what belongs to another cluster."""

import os
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from .checker import OFFSET, Checked
from .crash import Barrier, Recorder
from .disk import Disk, Layer, checked, content, create, qemu_io, run

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
ROUNDS = 50 if LONG else 2
MIB = 1 << 20
CLUSTER = 4096


def together(*works: Callable[[], object]) -> None:
    """Run functions at the same time; the first failure is that of the test."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as e:  # noqa: BLE001  # told below
            failures.append(e)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def source(path: Path, size: int) -> Path:
    path.write_bytes(b"".join(b"%07d\n" % n for n in range(size // 8)))
    return path


@pytest.fixture(params=["empty", "compressed", "overlay", "snapshot"])
def layers(request: pytest.FixtureRequest, tmp_path: Path) -> list[Layer]:
    """A disk of 2 MiB whose first write of a cluster takes a new one of the file."""
    path, raw = tmp_path / "image", source(tmp_path / "source", 2 * MIB)
    kind, options = request.param, ["-o", f"cluster_size={CLUSTER}"]
    if kind == "overlay":
        create(path, "2M", options[1], backing=raw, backing_format="raw")
        return [Layer(path, str(raw)), Layer(raw, raw=True)]
    if kind == "empty":
        create(path, "2M", options[1])
    else:
        words = ["-c"] if kind == "compressed" else []
        run("qemu-img", "convert", *words, "-f", "raw", "-O", "qcow2", *options, raw, path)
    if kind == "snapshot":
        run("qemu-img", "snapshot", "-c", "s", path)
    return [Layer(path)]


@pytest.mark.parametrize("run_number", range(ROUNDS))
def test_two_halves_of_a_new_cluster(run_number: int, layers: list[Layer]) -> None:
    """Both are there, and one cluster was taken."""
    count = 2 * MIB // CLUSTER
    with Disk(layers) as disk:
        barrier = threading.Barrier(2)

        def write(half: int) -> None:
            data = bytes([half + 1]) * (CLUSTER // 2)
            for number in range(count):
                barrier.wait(60)
                disk.write(number * CLUSTER + half * CLUSTER // 2, data)

        together(lambda: write(0), lambda: write(1))
        expected = count * (b"\1" * (CLUSTER // 2) + b"\2" * (CLUSTER // 2))
        assert disk.content() == expected
        assert disk.counts.allocated == count
    assert content(layers[0].path) == expected
    assert checked(layers[0].path) == 0


@pytest.mark.parametrize("run_number", range(ROUNDS))
def test_zeros_beside_a_write_and_trims_beside_new_clusters(run_number: int, layers: list[Layer]) -> None:
    count = 2 * MIB // CLUSTER
    with Disk(layers) as disk:
        barrier = threading.Barrier(3)

        def each(work: Callable[[int], object]) -> None:
            for number in range(0, count - 1, 2):
                barrier.wait(60)
                work(number * CLUSTER)

        together(
            lambda: each(lambda at: disk.write(at, b"a" * 1024)),
            lambda: each(lambda at: disk.zero(at + 1024, 2048)),
            lambda: each(lambda at: (disk.trim(at + CLUSTER, CLUSTER), disk.write(at + 3072, b"b" * 1024))),
        )
        disk.flush()
        for at in range(0, 2 * MIB - CLUSTER, 2 * CLUSTER):
            assert disk.read(at, CLUSTER) == b"a" * 1024 + bytes(2048) + b"b" * 1024
        expected = disk.content()
    assert content(layers[0].path) == expected
    assert checked(layers[0].path) == 0


def test_trims_and_writes_of_one_cluster_end_as_one_of_them(layers: list[Layer]) -> None:
    """A trim that comes while a cluster is taken frees that one, or none: never one that another has."""
    with Disk(layers) as disk:

        def write(own: int) -> None:
            rng = random.Random(own)
            for _ in range(300):
                at = rng.randrange(64) * CLUSTER
                disk.write(at, bytes([own]) * CLUSTER)

        def trim() -> None:
            rng = random.Random(9)
            for number in range(300):
                disk.trim(rng.randrange(64) * CLUSTER, CLUSTER)
                if number % 20 == 0:
                    disk.flush()

        before = disk.read(0, 64 * CLUSTER)
        together(lambda: write(1), lambda: write(2), trim)
        for at in range(0, 64 * CLUSTER, CLUSTER):
            found = disk.read(at, CLUSTER)
            assert found in (bytes(CLUSTER), b"\1" * CLUSTER, b"\2" * CLUSTER, before[at : at + CLUSTER])
        expected = disk.content()
    assert content(layers[0].path) == expected
    assert checked(layers[0].path) == 0


def test_readers_never_see_another_cluster(tmp_path: Path) -> None:
    """Each cluster has its own mark, or zeros, while clusters are freed, taken again and flushed."""
    path = create(tmp_path / "image", "1M", f"cluster_size={CLUSTER}")
    count, done = MIB // CLUSTER, threading.Event()

    def marks(number: int) -> bytes:
        return struct.pack(">Q", number + 1) * (CLUSTER // 8)

    with Disk(path) as disk:

        def change(seed: int) -> None:
            rng = random.Random(seed)
            for turn in range(400 * ROUNDS):
                number = rng.randrange(seed, count, 2)
                if rng.randrange(3):
                    disk.write(number * CLUSTER, marks(number))
                else:
                    disk.zero(number * CLUSTER, CLUSTER)
                if turn % 10 == 0:
                    disk.flush()

        def read(seed: int) -> None:
            rng = random.Random(seed)
            while not done.is_set():
                number = rng.randrange(count)
                found = set(struct.unpack(f">{CLUSTER // 8}Q", disk.read(number * CLUSTER, CLUSTER)))
                assert found <= {0, number + 1}, number

        def change_all() -> None:
            try:
                together(lambda: change(0), lambda: change(1))
            finally:
                done.set()

        together(change_all, *(lambda seed=seed: read(seed) for seed in range(8)))
    assert checked(path) == 0


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    path = create(tmp_path / "image", "16M")
    return Recorder(path, path.read_bytes())


def test_flushes_share_their_barriers(recorder: Recorder) -> None:
    clients, asked, all_asked = 20, [0], threading.Event()
    lock = threading.Lock()

    def hold(name: str) -> None:
        if name == "fdatasync":
            assert all_asked.wait(60)

    with recorder.installed():
        disk = Disk([Layer(Path(recorder.path))], shared=True)
        disk.write(0, b"x")
        since = recorder.now
        recorder.fault = hold

        def client(number: int) -> None:
            disk.write(number * 100_000, b"y" * 512)
            with lock:
                asked[0] += 1
                if asked[0] == clients:
                    all_asked.set()
            disk.flush()

        together(*(lambda number=number: client(number) for number in range(clients)))
        barriers = sum(isinstance(event, Barrier) for event in recorder.events[since:])
        disk.close()
    assert barriers < clients, "two for each of them"


def test_storage_that_hangs_on_one_cluster_stops_nobody_else(recorder: Recorder) -> None:
    hangs, go_on = threading.Event(), threading.Event()
    with recorder.installed():
        disk = Disk([Layer(Path(recorder.path))], shared=True)
        disk.write(0, b"a" * MIB)
        disk.flush()
        first: list[int] = []

        def hold(offset: int, length: int) -> None:
            first.append(offset)
            if offset == first[0]:
                hangs.set()
                assert go_on.wait(60)

        recorder.reads = hold
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(disk.read(0, 4096)))
        reader.start()
        assert hangs.wait(60)
        assert disk.read(65536, 4096) == b"a" * 4096
        disk.write(8 * MIB, b"b" * 100_000)
        disk.write(4096, b"c" * 4096)  # of the same cluster, too
        disk.flush()
        go_on.set()
        reader.join()
        assert found == [b"a" * 4096]
        disk.close()


def test_a_piece_of_a_table_that_hangs_stops_only_its_users(tmp_path: Path) -> None:
    """Entries of 32 MiB of the disk are read at once; the others are read and written meanwhile."""
    path = create(tmp_path / "image", "128M")
    qemu_io(path, "write -P 1 0 64k", "write -P 2 64M 64k")
    recorder = Recorder(path, path.read_bytes())
    l2 = Checked(recorder.content).l1[0] & OFFSET
    hangs, go_on = threading.Event(), threading.Event()

    def hold(offset: int, length: int) -> None:
        if offset == l2:
            hangs.set()
            assert go_on.wait(60)

    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        recorder.reads = hold
        found: list[bytes] = []
        readers = [threading.Thread(target=lambda: found.append(disk.read(0, 4096))) for _ in range(3)]
        for reader in readers:
            reader.start()
        assert hangs.wait(60)
        assert disk.read(64 * MIB, 4096) == b"\2" * 4096
        disk.write(100 * MIB, b"n" * 4096)
        disk.flush()
        go_on.set()
        for reader in readers:
            reader.join()
        assert found == 3 * [b"\1" * 4096]
        disk.close()
