# SPDX-License-Identifier: Apache-2.0
"""The connections of a transfer, and their work on the units of a queue."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ...units import MiB
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from . import workers
from .memory import new_buffer
from .plan import Queue, Unit

#: Most bytes of a request, and bytes of each connection's buffer. Processor seconds of client and server for 1 GiB over
#: TLS, on a busy machine: 1.76 + 1.85 with 1 MiB, 1.69 + 1.90 with 4 MiB, 1.85 + 1.97 with 8 MiB. That is about the
#: same, and with longer requests there are fewer waits for answers.
BUFFER_SIZE = 8 * MiB

#: A function that returns, for a thread's connection and buffer, the function that the thread calls with each unit.
Worker = Callable[[RemoteImage, memoryview], Callable[[Unit], None]]

_T = TypeVar("_T")


@dataclass(frozen=True)
class TransferConnections:
    """The connections of a transfer, each with a buffer of `buffer_size` bytes. `tick` is called while they work."""

    session: ClientSession
    images: list[RemoteImage]
    tick: Callable[[], None]
    buffer_size: int = BUFFER_SIZE

    def run(self, queue: Queue, worker: Worker) -> None:
        """Do all units of the queue. Each connection has its own thread and worker. Raises as workers.run()."""

        def work(image: RemoteImage) -> None:
            do = worker(image, new_buffer(self.buffer_size))
            for unit in queue.take(image.abilities):
                do(unit)

        threads: list[Callable[[], None]] = [queue.fill, *(partial(work, image) for image in self.images)]
        workers.run(threads, self.session.stop, self.tick)

    def ask(self, question: Callable[[RemoteImage], _T]) -> _T:
        """Call `question` with the first connection, in a thread, so that Ctrl-C ends the wait. Return its result."""
        (answer,) = workers.run([partial(question, self.images[0])], self.session.stop)
        return answer
