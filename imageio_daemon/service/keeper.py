# SPDX-License-Identifier: Apache-2.0
"""A thread that keeps the files of a directory as they were last wanted, so that no event loop waits for a disk."""

import concurrent.futures
import contextlib
import logging
import os
import threading
from typing import NamedTuple

from .state import write_file

log = logging.getLogger(__name__)

Done = concurrent.futures.Future[bool]


class _Wanted(NamedTuple):
    """What a file shall be. data: None: it shall not exist. done: the futures of all who wait for that.

    keep_old: an older file is better than none.
    """

    data: bytes | None
    keep_old: bool
    done: list[Done]


class FileKeeper:
    """Write and remove files of a directory, durably and in order. Thread-safe.

    directory: its descriptor, valid until close(). Files that are wanted meanwhile are done together, with one fsync(2)
    of the directory. what: name of the files for the log, such as "tickets".
    """

    def __init__(self, directory: int, what: str) -> None:
        self._directory = directory
        self._what = what
        self._changed = threading.Condition()
        self._wanted: dict[str, _Wanted] = {}
        self._closing = False
        self._failing = False
        # A daemon thread: a disk that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name=f"keep-{what}", daemon=True)
        self._thread.start()

    def write(self, name: str, data: bytes, *, keep_old: bool = False) -> Done:
        """Replace a file. An earlier wish for the same file that is not done yet is forgotten.

        The future is True if the file is durable, and False if it could not be written: then there is none, nor an
        older one, which is logged once until a file can be written again. OSError: an older one may be there. It is if
        keep_old says that it still tells the truth.
        """
        return self._want(name, data, keep_old=keep_old)

    def remove(self, name: str) -> Done:
        """Remove a file, if there is one. The future is True if it is durably gone; OSError: it may be there."""
        return self._want(name, None, keep_old=False)

    def close(self, timeout: float) -> bool:
        """Do what is wanted, for at most timeout seconds, and end the thread. Tell whether all was done."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _want(self, name: str, data: bytes | None, *, keep_old: bool) -> Done:
        done = Done()
        with self._changed:
            before = self._wanted.pop(name, None)
            if before is None:
                self._wanted[name] = _Wanted(data, keep_old, [done])
            else:
                self._wanted[name] = _Wanted(data, keep_old and before.keep_old, [*before.done, done])
            self._changed.notify()
        return done

    def _run(self) -> None:
        while wanted := self._take():
            results = {name: self._do(name, file.data, file.keep_old) for name, file in wanted.items()}
            failed = self._sync()
            for name, file in wanted.items():
                for done in file.done:
                    _resolve(done, failed or results[name])

    def _take(self) -> dict[str, _Wanted]:
        """Wait until files are wanted and return them; an empty dict after close()."""
        with self._changed:
            while not self._wanted and not self._closing:
                self._changed.wait()
            wanted, self._wanted = self._wanted, {}
            return wanted

    def _do(self, name: str, data: bytes | None, keep_old: bool) -> bool | OSError:
        if data is not None:
            try:
                write_file(self._directory, name, data)
            except OSError as e:
                self._failed(e)
                if keep_old:
                    return e
            else:
                self._failing = False
                return True
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)
        except OSError as e:
            return e
        return data is None

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            log.warning("%s cannot be kept in the state directory: %s", self._what, error.strerror)
        self._failing = True

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
