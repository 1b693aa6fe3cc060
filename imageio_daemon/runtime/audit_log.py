# SPDX-License-Identifier: Apache-2.0
"""The audit log: changes through the control service, and their callers.

Each event is a line of the log, and a JSON object that the control service returns. With a state directory the events
outlive the process, in the files `events` and, older, `events.1` of STATE/events/, with a JSON object on each line.
"""

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from ..units import MiB
from . import logs
from .line_writer import LineWriter
from .state import StateDirectory, read_file

log = logging.getLogger(__name__)

#: Fields that name the caller: uid and pid on a unix socket, otherwise the client's address. They are empty for the
#: daemon itself, and for its command line.
Caller: TypeAlias = Mapping[str, object]
DAEMON: Caller = {}

#: Most bytes of events in memory, which the control service can return. The oldest go first. One takes about 250.
MAX_KEPT = 1 * MiB
#: The size of a file, in bytes, at which the next one begins. Then the two files have at least MAX_KEPT bytes.
MAX_FILE = 1 * MiB
#: Most bytes of events that wait for the disk. More events, while the disk does not answer, are not written.
MAX_WAITING = 1 * MiB
#: Seconds until the next try to write lines, after a failure.
RETRY = 2.0
#: The longest event, in bytes: a url and a transfer id of which each byte is escaped.
MAX_EVENT = 64 * 1024

_FILE, _OLDER = "events", "events.1"


class AuditLog:
    """Log events, and keep the newest ones. The constructor and close() block."""

    def __init__(self, state: StateDirectory | None) -> None:
        self._lines: deque[tuple[int, str]] = deque()  # with their numbers, in order
        self._size = 0
        self._file: _EventFile | None = None
        self._why_none = ""
        if state is not None:
            try:
                directory = state.directory("events")
                for number, line in _read(directory):
                    self._keep(number, line)
                self._file = _EventFile(directory)
            except OSError as e:
                self._why_none = e.strerror or str(e)
                log.warning("events cannot be kept in the state directory: %s", self._why_none)

    def tell(self, event: str, by: Caller = DAEMON, **details: object) -> None:
        """Log an event, and keep it. The details are JSON values without secrets, and appear in the log, too."""
        log.info(event, extra=logs.fields(**details, **by))
        number = self._lines[-1][0] + 1 if self._lines else 1
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"number": number, "time": time, "event": event, **details, **by})
        self._keep(number, line)
        if self._file is not None:
            self._file.append(f"{line}\n".encode())

    def after(self, number: int) -> list[str]:
        """Return the kept events with larger numbers, oldest first, each as a JSON document."""
        return [line for its, line in self._lines if its > number]

    def why_not_kept(self) -> str:
        """Return why events do not outlive the process as they should, or "" if they do."""
        return self._why_none if self._file is None else self._file.why

    def close(self, timeout: float) -> bool:
        """Write what waits, for at most `timeout` seconds. Return False if the directory is still in use then."""
        return self._file is None or self._file.close(timeout)

    def _keep(self, number: int, line: str) -> None:
        self._lines.append((number, line))
        self._size += len(line)
        while self._size > MAX_KEPT:
            self._size -= len(self._lines.popleft()[1])


class _EventFile:
    """Append lines to the newer file in a thread. A line is on stable storage some milliseconds later. Thread-safe.

    Lines that cannot be written are tried again every RETRY seconds, until the process ends. If the file has some of
    them already, _read() finds that by their numbers.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        #: Why lines are not on the disk, or "" if they are.
        self.why = ""
        self._writer = LineWriter("events", self._write)
        self.close = self._writer.close

    def append(self, line: bytes) -> None:
        """Queue a line."""
        if not self._writer.append(line, MAX_WAITING):
            self._failed("the disk does not answer")

    def _write(self, lines: bytes) -> None:
        while True:
            try:
                _append(self._directory, lines)
            except OSError as e:
                self._failed(e.strerror or str(e))
                if self._writer.closing.wait(RETRY):
                    return
            else:
                self.why = ""
                return

    def _failed(self, reason: str) -> None:
        if not self.why:
            log.error("events are not kept in the state directory: %s", reason)
        self.why = reason


def _append(directory: int, data: bytes) -> None:
    """Append lines durably. Raises OSError. If a crash or a full disk has left an incomplete line, end that first."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(_FILE, flags, 0o600, dir_fd=directory)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)  # the caller tries all of it again
            raise
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if size >= MAX_FILE:
        with contextlib.suppress(OSError):  # the lines are durable, and the next call tries again to rename
            os.rename(_FILE, _OLDER, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)


def _read(directory: int) -> Iterator[tuple[int, str]]:
    """Yield number and line of the events in both files, older ones first. Raises OSError."""
    last = 0
    for name in (_OLDER, _FILE):
        data = b""
        with contextlib.suppress(FileNotFoundError):
            data = read_file(directory, name, MAX_FILE + MAX_WAITING + MAX_EVENT)
        for line in data.splitlines():
            number = _number(line)
            if number is not None and number > last:
                last = number
                yield number, line.decode("ascii")


def _number(line: bytes) -> int | None:
    """Return the number of an event, or None if the line is no event, because a crash has torn it."""
    try:
        event = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    number = event.get("number") if isinstance(event, dict) else None
    return number if isinstance(number, int) else None
