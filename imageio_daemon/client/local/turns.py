# SPDX-License-Identifier: Apache-2.0
"""Access to a stream by several threads, in the order of the bytes."""

import contextlib
import threading
from collections.abc import Iterator

from ..errors import Stopped


class Turns:
    """Turns on a stream. A range waits until all bytes before it had their turn. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._position = 0
        self._stopped = False

    @contextlib.contextmanager
    def turn(self, offset: int, length: int) -> Iterator[None]:
        """Wait for the turn of a range. Raises Stopped after stop() and after an error in another turn."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._position == offset)
            if self._stopped:
                raise Stopped("stopped")
        try:
            yield
        except BaseException:
            self.stop()
            raise
        with self._condition:
            self._position = offset + length
            self._condition.notify_all()

    def stop(self) -> None:
        """Make waiting and later turns raise Stopped."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
