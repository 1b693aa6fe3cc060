# SPDX-License-Identifier: Apache-2.0
"""Threads that write to an open image while its server is restarted: what is lost is told, and the bytes are right."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon import client
from imageio_daemon.client import Settings, WritesLost
from tests.support.daemon import Daemon
from tests.support.images import MiB

#: Restarts of the server; the real campaign runs with IMAGEIO_TEST_LONG=1.
RESTARTS = 60 if os.environ.get("IMAGEIO_TEST_LONG") else 2
THREADS = 4
PART = 2 * MiB


class Writers:
    """Threads that write to parts of an image, and what it has to hold."""

    def __init__(self, image: client.Image) -> None:
        self.expected = bytearray(THREADS * PART)
        self.written = threading.Semaphore(0)
        self.ended = threading.Event()
        self._image = image
        self._locks = [threading.Lock() for _ in range(THREADS)]

    def work(self, part: int) -> None:
        """Write at random places of a part, and flush now and then."""
        choice = random.Random(part)
        while not self.ended.is_set():
            length = choice.choice((1, 512, 4096, 65536))
            offset = part * PART + choice.randrange(PART - length)
            with self._locks[part]:
                if choice.random() < 0.2:
                    self.expected[offset : offset + length] = bytes(length)
                    self._image.zero(offset, length)
                else:
                    self.expected[offset : offset + length] = choice.randbytes(length)
                    self._image.write(offset, self.expected[offset : offset + length])
            self.written.release()
            if choice.random() < 0.05:
                self.flush()

    def flush(self) -> bool:
        """Flush; if something was lost write it again, and return False."""
        try:
            self._image.flush()
        except WritesLost as e:
            for start, length in e.ranges:
                self._again(start, start + length)
            return False
        return True

    def _again(self, start: int, end: int) -> None:
        while start < end:
            part = start // PART
            with self._locks[part]:
                data = self.expected[start : min(end, (part + 1) * PART)]
                self._image.write(start, data)
            start += len(data)


@pytest.mark.parametrize("local", [False, True], ids=["tls", "unix"])
def test_what_a_restart_loses_is_written_again(own: Daemon, tmp_path: Path, local: bool) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(THREADS * PART))
    settings = Settings(cafile=str(own.cafile), local=local, connections=THREADS)
    with client.open(own.url(own.add_ticket(path, THREADS * PART, timeout=3600)), settings=settings) as image:
        writers = Writers(image)
        with ThreadPoolExecutor(THREADS) as threads:
            jobs = [threads.submit(writers.work, part) for part in range(THREADS)]
            try:
                for number in range(RESTARTS):
                    for _ in range(50):
                        assert writers.written.acquire(timeout=60)
                    if number % 2:
                        own.stop()
                    else:
                        own.kill()
                    own.restart()
            finally:
                writers.ended.set()
            for job in jobs:
                job.result()
        while not writers.flush():
            pass
        content = bytearray(image.size)
        image.read(0, content)
    assert content == writers.expected
    assert path.read_bytes() == writers.expected
