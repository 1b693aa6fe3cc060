# SPDX-License-Identifier: Apache-2.0
"""Lines that a thread writes, so that no caller waits for a disk or a reader."""

import threading
from collections.abc import Callable


class LineWriter:
    """Call `write` in a thread of this name, with all lines that wait. Thread-safe."""

    def __init__(self, name: str, write: Callable[[bytes], None]) -> None:
        self._write = write
        #: Set by close().
        self.closing = threading.Event()
        # A reentrant lock, because a finalizer that the garbage collector runs while the lock is held may log.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[bytes] = []
        self._size = 0
        # A daemon thread: a disk that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def append(self, line: bytes, most: int) -> bool:
        """Queue a line, unless more than `most` bytes would wait then. Return whether it waits."""
        with self._changed:
            if self._size + len(line) > most:
                return False
            self._waiting.append(line)
            self._size += len(line)
            self._changed.notify()
        return True

    def close(self, timeout: float) -> bool:
        """Write what waits, for at most `timeout` seconds, and end the thread. Return whether it has ended."""
        with self._changed:
            self.closing.set()
            self._changed.notify()
        return self.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, for at most `timeout` seconds. None is no limit. Return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while lines := self._take():
            self._write(b"".join(lines))

    def _take(self) -> list[bytes]:
        """Wait for lines and return them. After close(), return those that are left, in the end none."""
        with self._changed:
            while not self._waiting and not self.closing.is_set():
                self._changed.wait()
            lines, self._waiting, self._size = self._waiting, [], 0
            return lines
