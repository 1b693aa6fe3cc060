# SPDX-License-Identifier: Apache-2.0
"""Log lines: one for each event, as text or as JSON. A separate thread writes them.

    log.info("transfer ended", extra=logs.fields(transfer="ab12", bytes=4096))

Lines for systemd's journal begin with their priority, so that `journalctl -p warning` finds them (sd-daemon(3)).
Characters that are not printable are escaped, so text of a peer cannot end a line or forge another one.
"""

import asyncio
import contextlib
import json
import logging
import os
import select
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ..commands.printable import printable, quoted
from .line_writer import LineWriter

STDERR = 2
#: The names of the levels in the configuration.
LEVELS = ("debug", "info", "warning", "error")

#: Most bytes of lines that wait for the writing thread. More lines, while the reader does not read, are dropped.
MAX_WAITING = 1024 * 1024
#: Seconds that close() waits for a reader that does not read.
STOP_TIMEOUT = 2.0

#: Priorities of the levels (syslog(3)).
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

_PACKAGE = __package__.partition(".")[0] + "."


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Return the `extra` of a logging call. The values become key=value in text lines, and keys of JSON objects."""
    return {"fields": values}


def lines_lost() -> int:
    """Return how many lines were dropped so far because the log was not read."""
    return sum(handler.lost for handler in logging.getLogger().handlers if isinstance(handler, LineHandler))


@contextlib.contextmanager
def setup(level: str, style: str, fd: int = STDERR) -> Iterator[None]:
    """Log messages at or above a level to a file descriptor, by default standard error. Flush at the end.

    The level is debug, info, warning or error. The style is text or json. A thread writes the lines, so a reader that
    is slow or gone delays no caller.
    """
    handler = LineHandler(fd)
    handler.setFormatter({"text": TextFormatter, "json": JsonFormatter}[style]())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)
        handler.close()


class LogLevel:
    """Change the level, for a time or until the next change. At first the log has the `configured` level."""

    def __init__(self, configured: str) -> None:
        self._configured = configured
        self._level = configured
        self._timer: asyncio.TimerHandle | None = None

    def set(self, level: str, seconds: float | None = None) -> None:
        """Change the level. Change back to the configured one after this many seconds, or never if None."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._level = level
        logging.getLogger().setLevel(level.upper())
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.reset)

    def reset(self) -> None:
        """Change to the configured level."""
        self.set(self._configured)

    def configure(self, level: str) -> None:
        """Change to a new level of the configuration."""
        self._configured = level
        self.reset()

    def state(self) -> dict[str, object]:
        """Return the level, the configured level, and the seconds until the log changes back, or None."""
        seconds = None
        if self._timer is not None:
            seconds = max(0, round(self._timer.when() - asyncio.get_running_loop().time()))
        return {"level": self._level, "configured": self._configured, "seconds": seconds}


class TextFormatter(logging.Formatter):
    """Format a record as TIME LEVEL LOGGER: MESSAGE KEY=VALUE..., with an indented traceback below, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a newline at the end."""
        pairs = "".join(f" {name}={quoted(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {_logger(record)}: {record.getMessage()}{pairs}"
        return "\n    ".join([printable(line), *map(printable, _traceback(self, record).splitlines())])


class JsonFormatter(logging.Formatter):
    """Format a record as a JSON object on one line: time, level, logger, message, then the call's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, in ASCII, without a newline at the end."""
        base: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if traceback := _traceback(self, record):
            base["traceback"] = traceback
        # `base` is first for the order of keys, and last so that no field can replace one of its keys.
        return json.dumps({**base, **_fields(record), **base}, default=str)


class LineHandler(logging.Handler):
    """Write lines to a file descriptor in a thread. Lines beyond MAX_WAITING are dropped and counted. Thread-safe."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._for_journal = _is_journal(fd)
        #: Lines that were dropped so far, and how many of them the log has told.
        self.lost = self._told = 0
        self._writer = LineWriter("log", self._write)
        self.join = self._writer.join

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record."""
        try:
            line = self._line(record)
        except (TypeError, ValueError):
            # Message and arguments do not match. Such a bug must not fail a transfer.
            self.handleError(record)
            return
        if not self._writer.append(line, MAX_WAITING):
            self.lost += 1

    def close(self) -> None:
        """Write the waiting lines, for at most STOP_TIMEOUT seconds, and end the thread."""
        self._writer.close(STOP_TIMEOUT)
        super().close()

    def _write(self, data: bytes) -> None:
        # An error of the log cannot be logged.
        with contextlib.suppress(OSError):
            _write(self._fd, data + self._about_dropped())

    def _about_dropped(self) -> bytes:
        lost = self.lost  # others may count more meanwhile
        count, self._told = lost - self._told, lost
        if not count:
            return b""
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, "log lines dropped", None, None)
        record.__dict__.update(fields(count=count))
        return self._line(record)

    def _line(self, record: logging.LogRecord) -> bytes:
        text = self.format(record)
        if self._for_journal:
            prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>"
            text = prefix + text.replace("\n", "\n" + prefix)  # the journal stores each line as an entry
        return text.encode() + b"\n"


def _is_journal(fd: int) -> bool:
    """Return whether the descriptor is a stream of systemd's journal (JOURNAL_STREAM in systemd.exec(5))."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # Another process that has the file open has made it non-blocking.
            writable = select.poll()  # select(2) knows no descriptors from 1024 on
            writable.register(fd, select.POLLOUT)
            writable.poll()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = getattr(record, "fields", {})
    return values


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _logger(record: logging.LogRecord) -> str:
    return record.name.removeprefix(_PACKAGE)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)
