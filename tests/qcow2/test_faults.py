# SPDX-License-Identifier: Apache-2.0
"""Storage that fails, once, at each of its calls: the operation says so, and the image stays sound."""

import errno
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from ..ioutil.engine_driver import Failed
from .checker import Checked
from .crash import Recorder
from .disk import Disk, Layer, create

SIZE = 256 << 10


class Fault:
    """Let one call fail."""

    def __init__(self, name: str, code: int, number: int, *, for_ever: bool = False) -> None:
        self.name, self.code, self.number, self.for_ever = name, code, number, for_ever
        self.seen = 0

    @property
    def happened(self) -> bool:
        return self.seen > self.number

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.seen += 1
            if self.seen - 1 == self.number or (self.for_ever and self.happened):
                raise OSError(self.code, "fault")


def work(disk: Disk) -> tuple[bytearray, list[bytes], int]:
    """Change a disk. Returns what was written by operations that have succeeded, what each byte may be else, and how
    many have failed."""
    sure = bytearray(disk_size := SIZE)
    maybe: list[bytes] = [b""] * disk_size
    failed = 0

    def change(kind: int, offset: int, data: bytes, flags: int = 0) -> None:
        nonlocal failed
        memory = ffi.from_buffer(data) if kind == lib.IOU_WRITE else ffi.NULL
        size = len(data) if kind == lib.IOU_WRITE else 0
        result = disk.attempt(kind, offset, len(data), flags, buffer=memory, buffer_size=size)
        failed += bool(result.error)
        for at, byte in enumerate(data, offset):
            if result.error:
                maybe[at] += bytes([byte])
            else:
                sure[at] = byte
                maybe[at] = b""

    def flush() -> None:
        nonlocal failed
        failed += bool(disk.attempt(lib.IOU_FLUSH).error)

    for number in range(6):
        change(lib.IOU_WRITE, number * 40_000 + 300, bytes([number + 1]) * 9000)
    flush()
    change(lib.IOU_ZERO, 0, bytes(100_000))
    change(lib.IOU_WRITE, 50_000, b"n" * 3000)
    flush()
    change(lib.IOU_ZERO, 120_000, bytes(5000), lib.IOU_ALLOCATE)
    change(lib.IOU_WRITE, 100_000, b"m" * 70_000)
    flush()
    return sure, maybe, failed


@pytest.mark.parametrize("cluster", [512, 4096, 65536])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("pwrite", errno.EIO),
        ("pwrite", errno.ENOSPC),
        ("pread", errno.EIO),
        ("fdatasync", errno.EIO),
        ("fallocate", errno.ENOSPC),
        ("fallocate", errno.EIO),
        ("ftruncate", errno.EIO),
    ],
)
def test_each_call_fails_once(name: str, code: int, cluster: int, tmp_path: Path) -> None:
    path = create(tmp_path / "image", SIZE, f"cluster_size={cluster}")
    fresh = path.read_bytes()
    number, step = 0, 1
    while True:
        recorder = Recorder(path, fresh)
        fault = Fault(name, code, number)
        with recorder.installed():
            try:
                disk = Disk([Layer(path)], shared=True)
            except Failed:
                number += 1
                continue
            recorder.fault = fault
            sure, maybe, failed = work(disk)
            in_time = fault.happened
            parts = range(0, SIZE, 4096)
            found = [disk.attempt(lib.IOU_READ, at, 4096, buffer=memory(), buffer_size=4096) for at in parts]
            if name != "pread":
                assert not any(one.error for one in found)
                data = disk.content()
                wrong = [at for at in range(SIZE) if data[at] != sure[at] and data[at] not in maybe[at]]
                assert not wrong, (number, wrong[:3])
            if name == "fdatasync" and in_time:
                assert failed
                assert disk.attempt(lib.IOU_FLUSH).error == code
                assert disk.info.flush_failed
            disk.close()
        image = Checked(recorder.content)
        assert not image.wrong, (number, image.wrong[:3])
        if not failed:
            assert image.content() == sure
        if not fault.happened:
            assert not failed
            assert image.leaks == 0
            break
        step = 1 if number < 40 else 7
        number += step


def memory() -> object:
    return ffi.new("char[]", 4096)


def test_a_full_file_system_has_room_again(tmp_path: Path) -> None:
    size = 4 << 20
    path = create(tmp_path / "image", size, "cluster_size=4k")
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(0, b"a" * 5000)
        recorder.fault = Fault("fallocate", errno.ENOSPC, 0, for_ever=True)
        with pytest.raises(Failed) as caught:
            disk.write(0, b"b" * size)
        assert caught.value.errno == errno.ENOSPC
        recorder.fault = lambda name: None
        disk.write(0, b"d" * size)
        disk.close()
    image = Checked(recorder.content)
    assert not image.wrong
    assert image.leaks == 0
    assert image.content() == b"d" * size


def test_a_flush_without_space_for_a_longer_table_fails_alone(tmp_path: Path) -> None:
    """Nothing of it is in the file: with space, the next one puts all there."""
    size = 16 << 20
    path = create(tmp_path / "image", size, "cluster_size=512", "refcount_bits=64")
    recorder = Recorder(path, path.read_bytes())
    data = b"d" * 4096
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        end = 0
        while len(recorder.content) < 3 << 20:  # the table has entries for 2 MiB
            disk.write(end, data)
            end += len(data)
        recorder.fault = Fault("fallocate", errno.ENOSPC, 0, for_ever=True)
        for length in (4096, 512):
            while not disk.attempt(lib.IOU_WRITE, end, length, buffer=ffi.from_buffer(data), buffer_size=length).error:
                end += length
        before = bytes(recorder.content)
        for _ in range(2):
            assert disk.attempt(lib.IOU_FLUSH).error == errno.ENOSPC
        assert recorder.content == before
        assert not disk.info.flush_failed
        recorder.fault = lambda name: None
        disk.flush()
        image = Checked(recorder.content)
        disk.close()
    assert not image.wrong
    assert image.content()[:end] == b"d" * end
