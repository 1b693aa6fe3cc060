# SPDX-License-Identifier: Apache-2.0
"""All connections of a transfer at work on the units of a queue."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ...units import MiB
from ..server.remote_image import RemoteImage
from ..stopping import Stop
from . import workers
from .memory import new_buffer
from .plan import Queue, Unit

#: Most bytes of a request, and bytes of each connection's buffer. Processor seconds of client and server for 1 GiB over
#: TLS, on a busy machine: 1.76 + 1.85 with 1 MiB, 1.69 + 1.90 with 4 MiB, 1.85 + 1.97 with 8 MiB. That is about the
#: same, and with longer requests there are fewer waits for answers.
BUFFER_SIZE = 8 * MiB

#: A function that returns, for a thread's connection and buffer, the function that the thread calls with each unit.
Worker = Callable[[RemoteImage, memoryview], Callable[[Unit], None]]


class RunQueue(Protocol):
    """A function that does all units of a queue on all connections."""

    def __call__(self, images: list[RemoteImage], queue: Queue, worker: Worker) -> None: ...


def run_all(
    images: list[RemoteImage],
    queue: Queue,
    worker: Worker,
    stop: Stop,
    tick: Callable[[], None],
    buffer_size: int = BUFFER_SIZE,
) -> None:
    """Do all units of the queue. Each connection has its own thread and worker. Raises as workers.run()."""

    def work(image: RemoteImage) -> None:
        do = worker(image, new_buffer(buffer_size))
        for unit in queue.take(image.abilities):
            do(unit)

    threads: list[Callable[[], None]] = [queue.fill, *(partial(work, image) for image in images)]
    workers.run(threads, stop, tick)
