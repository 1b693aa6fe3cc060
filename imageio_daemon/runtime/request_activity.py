# SPDX-License-Identifier: Apache-2.0
"""A request that Python serves: its operation and its waits. lane/work.c does the same for lanes.

It also knows if its image could not be opened, so that a request tries to open an image once, not in each of its steps.
"""

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from enum import StrEnum
from typing import NamedTuple, Protocol


class Wait(StrEnum):
    """The kinds of waits of a request.

    CLIENT is for bytes from the client, or for room to send to it. TURN is for memory, the device or earlier changes.
    """

    CLIENT = "client"
    LIMIT = "limit"
    STORAGE = "storage"
    TURN = "turn"


class Doing(NamedTuple):
    """A running request: its operation and range, the seconds since it began, and the Wait that it is in, or ""."""

    operation: str
    offset: int
    length: int
    seconds: float
    waits_for: str


class Worker(Protocol):
    """A request that Python serves, or a lane, which serves the requests of a connection."""

    def doing(self) -> Doing | None:
        """Return the running request, or None."""


class RequestActivity:
    """One request that Python serves: its operation, and the time of its waits by kind."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        #: For how many seconds the request has waited, by what it waited for.
        self.waited: dict[str, float] = dict.fromkeys(Wait, 0.0)
        self._waiting: list[Wait] = []
        self._operation: tuple[str, int, int] | None = None
        self._not_opened: tuple[object, Exception] | None = None

    def wait(self, kind: Wait) -> float:
        """Begin a wait, and return the time to pass to go_on()."""
        self._waiting.append(kind)
        return time.monotonic()

    def go_on(self, kind: Wait, since: float) -> None:
        """End a wait. No time counts twice: if waits overlap, the time counts for the wait that ends first."""
        self._waiting.remove(kind)
        now = time.monotonic()
        self.waited[kind] += now - max(since, self._told)
        self._told = now

    def does(self, operation: str, offset: int, length: int) -> None:
        """Note the operation of the request, unless an earlier one was noted."""
        self._operation = self._operation or (operation, offset, length)

    @property
    def seconds(self) -> float:
        """Return the seconds since the request began."""
        return time.monotonic() - self._began

    def not_opened(self, image: object, error: Exception) -> None:
        """Note that an image could not be opened for the request."""
        self._not_opened = image, error

    def failure(self, image: object) -> Exception | None:
        """Return why an image could not be opened for this request, or None if no such failure was noted."""
        failed, error = self._not_opened or (None, None)
        return error if failed is image else None

    def doing(self) -> Doing | None:
        """Return what the request does, or None if it has not begun an operation."""
        if self._operation is None:
            return None
        return Doing(*self._operation, self.seconds, self._waiting[-1] if self._waiting else "")


_current: ContextVar[RequestActivity | None] = ContextVar("activity", default=None)


def begin(activity: RequestActivity | None = None) -> RequestActivity:
    """Let the running task, and tasks that it starts, serve a request from now on, and return its activity.

    Pass the activity of a request that has begun before. Otherwise the request begins now.
    """
    activity = activity or RequestActivity()
    _current.set(activity)
    return activity


@contextlib.contextmanager
def waiting(kind: Wait) -> Iterator[None]:
    """Count the block as a wait of the request that the running task serves, if it serves one."""
    activity = _current.get()
    since = 0.0 if activity is None else activity.wait(kind)
    try:
        yield
    finally:
        if activity is not None:
            activity.go_on(kind, since)


def current() -> RequestActivity | None:
    """Return the request that the running task serves, or None if it serves none."""
    return _current.get()


def does(operation: str, offset: int, length: int) -> None:
    """Note the operation of the request that the running task serves, if it serves one."""
    activity = _current.get()
    if activity is not None:
        activity.does(operation, offset, length)
