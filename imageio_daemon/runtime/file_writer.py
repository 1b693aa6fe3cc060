# SPDX-License-Identifier: Apache-2.0
"""Threads that write the files of a directory, so that the event loop does not wait for a disk."""

import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from typing import NamedTuple

from .state import write_file

log = logging.getLogger(__name__)

Done = concurrent.futures.Future[bool]

#: Most files to write at a time. The journal of a file system joins flushes of the same time: 128 files of 600
#: bytes took 8 ms each one after the other, and 0.5 ms each four at a time (ext4 on a busy virtual disk).
THREADS = 4


class _WantedFile(NamedTuple):
    """The wanted content of a file, or None to remove it.

    `done` has the futures of all callers that wait. With `keep_old`, an older file is better than none.
    """

    data: bytes | None
    keep_old: bool
    done: list[Done]


class FileWriter:
    """Write and remove files of a directory, durably, and those of one name in order. Thread-safe.

    Pass the descriptor of the directory, which stays valid until close(), and the name of the files for the log, such
    as "tickets". Removals come before writes.
    """

    def __init__(self, directory: int, what: str) -> None:
        self._directory = directory
        self._what = what
        self._changed = threading.Condition()
        self._writes: dict[str, _WantedFile] = {}
        self._removals: dict[str, _WantedFile] = {}
        self._busy: set[str] = set()  # files that a thread writes or removes now
        self._closing = False
        #: Why the last file could not be written, or "" if it was.
        self.why = ""
        # Daemon threads: a disk that hangs must not keep the process from its end.
        names = (f"keep-{what}-{number}" for number in range(THREADS))
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def write(self, name: str, data: bytes, *, keep_old: bool = False) -> Done:
        """Replace a file. This drops an earlier call for the same file if its work has not begun.

        The future is True if the file is durable. It is False if the file could not be written; then there is no file,
        nor an older one, and the log says so once until a file can be written again. It raises OSError if an older file
        may be there. With `keep_old`, an older file that cannot be replaced stays.
        """
        return self._want(name, data, keep_old=keep_old)

    def remove(self, name: str) -> Done:
        """Remove a file, if there is one. The future is True if it is durably gone. OSError means that it may exist."""
        return self._want(name, None, keep_old=False)

    def close(self, timeout: float) -> bool:
        """Finish all calls, within at most `timeout` seconds, and end the threads. Return whether all were finished."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _want(self, name: str, data: bytes | None, *, keep_old: bool) -> Done:
        done = Done()
        with self._changed:
            before = self._writes.pop(name, None) or self._removals.pop(name, None)
            if before is None:
                wanted = _WantedFile(data, keep_old, [done])
            else:
                wanted = _WantedFile(data, keep_old and before.keep_old, [*before.done, done])
            (self._removals if data is None else self._writes)[name] = wanted
            self._changed.notify()
        return done

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            name, (data, keep_old, waiting) = taken
            result = self._do(name, data, keep_old)
            failed = self._sync()
            for done in waiting:
                _resolve(done, failed or result)
            with self._changed:
                self._busy.remove(name)
                self._changed.notify_all()

    def _take(self) -> tuple[str, _WantedFile] | None:
        """Wait for a file that is not busy, and return its name and its wanted content. Return None at the end."""
        with self._changed:
            while True:
                for wanted in (self._removals, self._writes):
                    name = next((name for name in wanted if name not in self._busy), None)
                    if name is not None:
                        self._busy.add(name)
                        return name, wanted.pop(name)
                if self._closing and not self._removals and not self._writes:
                    return None
                self._changed.wait()

    def _do(self, name: str, data: bytes | None, keep_old: bool) -> bool | OSError:
        if data is not None:
            try:
                write_file(self._directory, name, data)
            except OSError as e:
                self._failed(e)
                if keep_old:
                    return e
            else:
                self.why = ""
                return True
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)
        except OSError as e:
            return e
        return data is None

    def _failed(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if not self.why:
            log.warning("%s cannot be kept in the state directory: %s", self._what, reason)
        self.why = reason

    def _sync(self) -> OSError | None:
        try:
            os.fsync(self._directory)
        except OSError as e:
            log.error("%s in the state directory may not outlive a power cut: %s", self._what, e.strerror)
            return e
        return None


def _resolve(done: Done, result: bool | OSError) -> None:
    if not done.set_running_or_notify_cancel():
        return
    if isinstance(result, OSError):
        done.set_exception(result)
    else:
        done.set_result(result)
