# SPDX-License-Identifier: Apache-2.0
"""The power goes off: what a flush has promised is there. The log of every write is replayed up to each promise."""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import first_difference
from tests.ioutil.engine_driver import Image
from tests.ioutil.model import Model, random_operation

from .kernel_storage import Mapped, MiB, loop_disk, mapped, mounted, run, snapshot
from .logwrites import replay
from .small_daemon import Daemon, running_daemon

#: xfs wants 300 MiB.
DISK = 320 * MiB
PART = 2 * MiB


@contextlib.contextmanager
def recorded(promises: dict[str, bytes], find: Callable[[Path], bytes]) -> Iterator[Mapped]:
    """Yield a device whose writes are logged, and check in the end that at each mark of it the promise was kept.

    find: what is at the beginning of the image on a device.
    """
    with loop_disk(DISK) as disk, loop_disk(DISK) as log, loop_disk(DISK) as target:
        with mapped(f"0 {DISK // 512} log-writes {disk} {log}") as device:
            yield device
        marks = []
        for mark in replay(log, target):
            if mark in promises:
                promise = promises[mark]
                assert not first_difference(find(target)[: len(promise)], promise), mark
                marks.append(mark)
        assert marks == list(promises)


def start_of(device: Path) -> bytes:
    with device.open("rb") as file:
        return file.read(PART)


def work(image: Image, device: Mapped, promises: dict[str, bytes], flushes: int) -> None:
    """Do anything with an image, flush, and write down what is promised then."""
    chance = random.Random(7)
    model = Model(image, 0, image.read(0, PART))
    for number in range(flushes):
        for _ in range(6):
            random_operation(chance, model)
        image.flush()
        device.mark(f"flush{number}")
        promises[f"flush{number}"] = bytes(model.content)


def test_device_has_what_was_flushed() -> None:
    promises: dict[str, bytes] = {}
    with recorded(promises, start_of) as device, Image(device.path) as image:
        work(image, device, promises, 12)


def test_device_has_what_was_written_with_fua() -> None:
    promises: dict[str, bytes] = {}
    content = bytearray(PART)
    with recorded(promises, start_of) as device, Image(device.path) as image:
        for number, (offset, length) in enumerate([(0, 4096), (5000, 100), (100_000, 65536), (512, 512)]):
            image.write(offset, b"f" * length, lib.IOU_FUA)
            content[offset : offset + length] = b"f" * length
            device.mark(f"write{number}")
            promises[f"write{number}"] = bytes(content)
            image.zero(offset + 7, length // 2, lib.IOU_FUA)
            content[offset + 7 : offset + 7 + length // 2] = bytes(length // 2)
            device.mark(f"zero{number}")
            promises[f"zero{number}"] = bytes(content)


def test_the_log_tells_when_nothing_was_flushed() -> None:
    """The proof can fail."""
    promises = {"early": bytes(PART)}
    with recorded(promises, start_of) as device, Image(device.path) as image:
        image.write(0, b"x" * 4096)
        device.mark("early")


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
@pytest.mark.parametrize("buffered", [False, True], ids=["direct", "buffered"])
def test_file_has_what_was_flushed_after_recovery(filesystem: str, buffered: bool) -> None:
    run("modprobe", filesystem)
    promises: dict[str, bytes] = {}

    def find(target: Path) -> bytes:
        # Recovery writes to the disk, and the replay goes on with it.
        with snapshot(target, DISK) as copy, mounted(filesystem, copy, make=False) as directory:
            return (directory / "image").read_bytes()

    with recorded(promises, find) as device, mounted(filesystem, device.path) as directory:
        path = directory / "image"
        with path.open("wb") as file:
            file.truncate(PART)
        run("sync", "-f", directory)
        with Image(path, buffered=buffered) as image:
            work(image, device, promises, 4)


# Through the daemon


@contextlib.contextmanager
def served() -> Iterator[tuple[Daemon, Mapped, dict[str, bytes]]]:
    promises: dict[str, bytes] = {}
    with recorded(promises, start_of) as device, running_daemon() as daemon:
        daemon.add_ticket("crash", device.path, DISK)
        yield daemon, device, promises


def test_http_answer_to_a_flush_is_a_promise() -> None:
    content = bytearray(PART)
    chance = random.Random(3)
    with served() as (daemon, device, promises):

        def promised(mark: str) -> None:
            device.mark(mark)
            promises[mark] = bytes(content)

        for number in range(4):
            offset, length = chance.randrange(MiB), chance.randrange(1, MiB)
            data = chance.randbytes(length)
            daemon.upload("crash", offset, data, flush=True)
            content[offset : offset + length] = data
            promised(f"put{number}")
            offset, length = chance.randrange(MiB), chance.randrange(1, MiB)
            daemon.patch("crash", json.dumps({"op": "zero", "offset": offset, "size": length, "flush": True}))
            content[offset : offset + length] = bytes(length)
            promised(f"zero{number}")
            data = chance.randbytes(5000)
            daemon.upload("crash", offset, data, flush=False)
            content[offset : offset + len(data)] = data
            daemon.patch("crash", '{"op": "flush"}')
            promised(f"flush{number}")


def test_nbd_flush_and_fua_are_promises() -> None:
    content = bytearray(PART)
    with served() as (daemon, device, promises):
        uri = daemon.nbd_uri("crash")
        for number in range(3):
            byte, offset = 16 + number, number * 70_000 // 512 * 512
            run("qemu-io", "-t", "none", "-f", "raw", "-c", f"write -f -P {byte} {offset} 64k", uri)
            content[offset : offset + 65536] = bytes([byte]) * 65536
            device.mark(f"fua{number}")
            promises[f"fua{number}"] = bytes(content)
            run("qemu-io", "-t", "none", "-f", "raw", "-c", f"write -z {offset} 8k", "-c", "flush", uri)
            content[offset : offset + 8192] = bytes(8192)
            device.mark(f"flush{number}")
            promises[f"flush{number}"] = bytes(content)
