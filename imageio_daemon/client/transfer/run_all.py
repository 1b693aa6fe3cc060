# SPDX-License-Identifier: Apache-2.0
"""The work of all connections of a transfer on the units of a queue."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ...units import MiB
from ..server.remote_image import RemoteImage
from ..stopping import Stop
from . import workers
from .memory import new_buffer
from .plan import Queue, Unit

#: Bytes of the longest request and of each connection's buffer. Processor seconds for 1 GiB over TLS, client and
#: server, on a busy machine: 1.76 + 1.85 with 1 MiB, 1.69 + 1.90 with 4 MiB, 1.85 + 1.97 with 8 MiB. That is no
#: difference, and longer requests wait for fewer answers.
BUFFER_SIZE = 8 * MiB

#: Makes what a thread does with each unit, of its connection and its buffer.
Worker = Callable[[RemoteImage, memoryview], Callable[[Unit], None]]


class RunQueue(Protocol):
    """Do all units of a queue, on all connections."""

    def __call__(self, images: list[RemoteImage], queue: Queue, worker: Worker) -> None: ...


def run_all(
    images: list[RemoteImage],
    queue: Queue,
    worker: Worker,
    stop: Stop,
    tick: Callable[[], None],
    buffer_size: int = BUFFER_SIZE,
) -> None:
    """Do all units of the queue, with a thread and a worker of its own for each connection. Raises as workers.run()."""

    def work(image: RemoteImage) -> None:
        do = worker(image, new_buffer(buffer_size))
        for unit in queue.take(image.abilities):
            do(unit)

    threads: list[Callable[[], None]] = [queue.fill, *(partial(work, image) for image in images)]
    workers.run(threads, stop, tick)
