# SPDX-License-Identifier: Apache-2.0
"""The state of an upload, by which it can be continued: the ranges that the server has flushed."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ...image.ranges import RangeSet
from ..errors import LocalError, StateMismatch
from ..server.address import ImageUrl
from .plan import Unit

VERSION = 1
SUFFIX = ".imageio-upload"
#: Largest state file, in bytes. A range takes 30 bytes, and there is one for each unit that was sent out of order.
MAX_FILE = 4 * 1024**2
#: Seconds between two flushes, after each of which the state is saved. A continued upload sends again at most what was
#: sent in this time.
CHECKPOINT = 10.0


class StateFile:
    """The file with the state of one upload."""

    def __init__(self, path: Path, source: Mapping[str, object], url: ImageUrl, target_size: int) -> None:
        self.path = path
        self._new = path.with_name(path.name + ".new")
        # The path of the URL is a secret.
        name = hashlib.blake2b(f"{url.host} {url.port} {url.path}".encode(), digest_size=16).hexdigest()
        self._identity = {
            "version": VERSION,
            "source": dict(source),
            "target": {"url": name, "size": target_size},
        }

    def load(self) -> list[tuple[int, int]]:
        """Return the (start, end) ranges that are done; none without a file. Raises StateMismatch, LocalError."""
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            return []
        except OSError as e:
            raise LocalError(f"can't read {self.path}: {e.strerror}") from e
        try:
            content = json.loads(text if len(text) <= MAX_FILE else b"")
            done = [_range(start, end) for start, end in content.pop("done")]
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise StateMismatch(f"{self.path} is not the state of an upload: remove it to start anew") from e
        for part in ("version", "source", "target"):
            if content.get(part) != self._identity[part]:
                raise StateMismatch(
                    f"{self.path} is the state of another upload: the {part} has changed. Remove it to start anew"
                )
        return done

    def save(self, done: list[tuple[int, int]]) -> None:
        """Replace the file atomically by rename(2). Raises LocalError."""
        try:
            with self._new.open("w") as file:
                json.dump(self._identity | {"done": done}, file)
                file.flush()
                os.fsync(file.fileno())
            self._new.replace(self.path)
        except OSError as e:
            raise LocalError(f"can't write {self._new}: {e.strerror} (--no-state uploads without it)") from e

    def remove(self) -> None:
        """Remove the file, and the new one of an upload that was killed in save(). Raises LocalError."""
        try:
            self.path.unlink(missing_ok=True)
            self._new.unlink(missing_ok=True)
        except OSError as e:
            raise LocalError(f"can't remove {self.path}: {e.strerror}") from e


def _range(start: object, end: object) -> tuple[int, int]:
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        raise ValueError("not a range")
    return start, end


class Confirmed:
    """What was sent, and what a flush of the same process has confirmed since; see Restarts. Thread-safe."""

    def __init__(self, done: list[tuple[int, int]], interval: float = CHECKPOINT) -> None:
        self._lock = threading.Lock()
        # The limit is never reached: a set that joined ranges would contain bytes that were not sent.
        self._safe = RangeSet(limit=MAX_FILE)
        for start, end in done:
            self._safe.add(start, end)
        self._sent: list[tuple[Unit, int]] = []
        self._lost: list[Unit] = []
        self._interval = interval
        self._next = time.monotonic() + interval

    def has(self, unit: Unit) -> bool:
        """Tell whether a unit is on stable storage, so that it need not be sent."""
        with self._lock:
            return self._safe.size_with([(unit.start, unit.end)]) == self._safe.size()

    def add(self, unit: Unit, restarts: int) -> bool:
        """Add a unit that was sent; return True, to one thread at a time, when a checkpoint is due.

        restarts: Restarts.count before the first request of the unit.
        """
        with self._lock:
            self._sent.append((unit, restarts))
            if time.monotonic() < self._next:
                return False
            self._next = time.monotonic() + self._interval
            return True

    def take_sent(self) -> list[tuple[Unit, int]]:
        """Return the units sent since the last call. Called before the flush that confirms them."""
        with self._lock:
            sent, self._sent = self._sent, []
            return sent

    def give_back(self, sent: list[tuple[Unit, int]]) -> None:
        """Add units again after a flush that was not answered."""
        with self._lock:
            self._sent = sent + self._sent

    @property
    def is_waiting(self) -> bool:
        """Tell whether units were sent that no flush has confirmed."""
        with self._lock:
            return bool(self._sent)

    def flushed(self, sent: list[tuple[Unit, int]], restarts: int) -> None:
        """Note a flush of what was sent before it. Units sent before a restart may be lost.

        restarts: Restarts.count after the flush.
        """
        with self._lock:
            for unit, before in sent:
                if before == restarts:
                    self._safe.add(unit.start, unit.end)
                else:
                    self._lost.append(unit)

    def take_lost(self) -> list[Unit]:
        """Return the units that have to be sent again, once."""
        with self._lock:
            lost, self._lost = self._lost, []
            return lost

    def safe(self) -> list[tuple[int, int]]:
        """Return the ranges that are on stable storage."""
        with self._lock:
            return self._safe.pieces()
