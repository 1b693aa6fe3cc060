# SPDX-License-Identifier: Apache-2.0
"""A request that Python serves: what it does now, and where its time goes. lane/work.c does the same for lanes.

It also knows which image could not be opened for it, so that a request opens an image once, not in each of its steps.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import NamedTuple, Protocol


class Wait(StrEnum):
    """What a request waits for. CLIENT: its bytes, or that it reads. TURN: memory, the device, earlier changes."""

    CLIENT = "client"
    LIMIT = "limit"
    STORAGE = "storage"
    TURN = "turn"


class Doing(NamedTuple):
    """A request that runs. operation: what it does. seconds: since it began. waits_for: a Wait, or ""."""

    operation: str
    offset: int
    length: int
    seconds: float
    waits_for: str


class Worker(Protocol):
    """A request of Python, or a lane that serves those of a connection."""

    def doing(self) -> Doing | None:
        """Return what runs, or None."""
        ...


class RequestActivity:
    """One request of Python: its operation, and how long it has waited for what."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._seconds: dict[str, float] = dict.fromkeys(Wait, 0.0)
        self._waiting: list[Wait] = []
        self._operation: tuple[str, int, int] | None = None
        self._not_opened: tuple[object, Exception] | None = None

    def wait(self, kind: Wait) -> float:
        """Begin a wait, and return the time to pass to go_on()."""
        self._waiting.append(kind)
        return time.monotonic()

    def go_on(self, kind: Wait, since: float) -> None:
        """End a wait. Of waits at the same time, the first one to end counts; no time counts twice."""
        self._waiting.remove(kind)
        now = time.monotonic()
        self._seconds[kind] += now - max(since, self._told)
        self._told = now

    def does(self, operation: str, offset: int, length: int) -> None:
        """Note the operation of the request: the first one."""
        self._operation = self._operation or (operation, offset, length)

    @property
    def seconds(self) -> float:
        """Return the seconds since the request began."""
        return time.monotonic() - self._began

    @property
    def waited(self) -> Mapping[str, float]:
        """Return the seconds in which it has waited, by what for."""
        return self._seconds

    def not_opened(self, image: object, error: Exception) -> None:
        """Note that an image could not be opened for the request."""
        self._not_opened = image, error

    def failure(self, image: object) -> Exception | None:
        """Return why an image could not be opened for this request, or None if it has not tried."""
        failed, error = self._not_opened or (None, None)
        return error if failed is image else None

    def doing(self) -> Doing | None:
        """Return what the request does, or None if it has not begun an operation."""
        if self._operation is None:
            return None
        waits = tuple(self._waiting)
        return Doing(*self._operation, self.seconds, waits[-1] if waits else "")


_current: ContextVar[RequestActivity | None] = ContextVar("activity", default=None)


def begin(activity: RequestActivity | None = None) -> RequestActivity:
    """Return the activity for a request that the running task, and those that it starts, serve from now on.

    activity: of a request that has begun before; None: it begins now.
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
