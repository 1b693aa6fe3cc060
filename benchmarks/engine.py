# SPDX-License-Identifier: Apache-2.0
"""Cost of a storage operation on a busy loop: the C engine beside run_in_executor.

python -m benchmarks.engine [--quick]

The loop does what a server's loop does: Python work all the time, so the GIL is rarely free. An executor's thread needs
the GIL twice for an operation, the engine's never. The file lies on tmpfs: the storage costs next to nothing, what is
left is the way there and back.
"""

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.cases import KiB, MiB
from benchmarks.measure import table
from ioutil_ext import lib
from tests.ioutil.engine_driver import Queue, running_engine

SIZE = 16 * MiB
THREADS = 32

Read = Callable[[int, memoryview], Awaitable[None]]


class Cost(NamedTuple):
    operations: float  # a second
    latency: float  # median, seconds
    cpu: float  # seconds for one operation, all threads


async def measure(read: Read, length: int, tasks: int, seconds: float) -> Cost:
    """Let tasks read one after the other, beside a task that keeps the loop busy."""
    latencies: list[float] = []
    stop = time.perf_counter() + seconds

    async def reader(number: int) -> None:
        buffer = memoryview(bytearray(length))
        offset = number * length
        while time.perf_counter() < stop:
            start = time.perf_counter()
            await read(offset % (SIZE - length), buffer)
            latencies.append(time.perf_counter() - start)
            offset += length

    async def busy() -> None:
        while time.perf_counter() < stop:
            sum(range(2000))  # some 20 us, as handling one request head takes
            await asyncio.sleep(0)

    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    await asyncio.gather(busy(), *(reader(number) for number in range(tasks)))
    elapsed = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = len(latencies)
    return Cost(count / elapsed, statistics.median(latencies), cpu / count)


class EngineReader:
    """The least asyncio that a queue needs: futures by cookie, a reader on the eventfd."""

    def __init__(self, queue: Queue, path: Path) -> None:
        self._queue = queue
        self.handle = queue.open(path, 0)
        self._futures: dict[int, asyncio.Future[None]] = {}
        asyncio.get_running_loop().add_reader(queue.fd, self._reap)

    def read(self, offset: int, buffer: memoryview) -> Awaitable[None]:
        cookie = self._queue.submit(lib.IOU_READ, self.handle, offset, len(buffer), buffer=buffer)
        future = self._futures[cookie] = asyncio.get_running_loop().create_future()
        return future

    def _reap(self) -> None:
        for result in self._queue.reap():
            self._queue.wait(result.cookie)
            assert result.error == 0
            self._futures.pop(result.cookie).set_result(None)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._queue.fd)
        self._queue.close_handle(self.handle)


async def with_engine(path: Path, length: int, tasks: int, seconds: float) -> Cost:
    with running_engine(THREADS * 4) as engine:  # a quarter for one device: THREADS
        reader = EngineReader(engine.queue(), path)
        try:
            return await measure(reader.read, length, tasks, seconds)
        finally:
            reader.close()


async def with_executor(path: Path, length: int, tasks: int, seconds: float) -> Cost:
    loop = asyncio.get_running_loop()
    fd = os.open(path, os.O_RDONLY)
    with ThreadPoolExecutor(THREADS) as executor:

        async def read(offset: int, buffer: memoryview) -> None:
            await loop.run_in_executor(executor, os.preadv, fd, [buffer], offset)

        try:
            return await measure(read, length, tasks, seconds)
        finally:
            os.close(fd)


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, as a smoke test")
    quick = parser.parse_args().quick
    rounds, seconds = (1, 0.2) if quick else (5, 2.0)
    rows = []
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(SIZE)
        path = Path(file.name)
        for length in (4 * KiB, 64 * KiB, 1 * MiB):
            for tasks in (1, 8, 32):
                costs: dict[str, list[Cost]] = {"engine": [], "run_in_executor": []}
                for _ in range(rounds):
                    costs["engine"].append(uvloop.run(with_engine(path, length, tasks, seconds)))
                    costs["run_in_executor"].append(uvloop.run(with_executor(path, length, tasks, seconds)))
                for name, measured in costs.items():
                    cost = median(measured)
                    what = [f"{length // KiB} KiB", str(tasks), name]
                    rows.append([*what, f"{cost.operations:.0f}", f"{cost.latency * 1e6:.0f}", f"{cost.cpu * 1e6:.0f}"])
    print(table(["read", "at once", "how", "operations/s", "median latency, us", "CPU for one, us"], rows))


if __name__ == "__main__":
    main()
