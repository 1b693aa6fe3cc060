# SPDX-License-Identifier: Apache-2.0
"""What holds while storage is lost, until it comes back: requests to it wait, and those to other storage do not."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ioutil_ext import lib
from tests.ioutil.engine_driver import running_engine

from .kernel_storage import MiB
from .small_daemon import Daemon, running_daemon


class Losable(Protocol):
    """Storage that can be lost."""

    def stop(self) -> None:
        """Lose it."""

    def start(self) -> None:
        """Get it back."""


def other_storage() -> Path:
    """Return a new file of a MiB on a disk of its own."""
    path = Path("/var/tmp/other")
    path.write_bytes(bytes(MiB))
    return path


@contextlib.contextmanager
def running_beside() -> Iterator[Daemon]:
    """Run a daemon with a ticket called other for other storage."""
    with running_daemon() as daemon:
        daemon.add_ticket("other", other_storage(), MiB)
        yield daemon


def check_that_nobody_else_waits(storage: Losable, path: Path) -> None:
    """Write h to the first 80 KiB of an image on the storage while that is lost, and to other storage meanwhile."""
    with running_engine(max_threads=8) as engine:
        queue = engine.queue()
        image, beside = queue.open(path), queue.open(other_storage())
        storage.stop()
        writes = [queue.submit(lib.IOU_WRITE, image, n * 4096, 4096, buffer=bytearray(b"h" * 4096)) for n in range(20)]
        for n in range(20):
            queue.run(lib.IOU_WRITE, beside, n * 4096, 4096, buffer=bytearray(b"o" * 4096))
        assert not [result for result in queue.reap() if result.cookie in writes]
        storage.start()
        assert [queue.wait(write, timeout=120).error for write in writes] == [0] * 20
        queue.run(lib.IOU_FLUSH, image)
        queue.close_handle(image)
        queue.close_handle(beside)
