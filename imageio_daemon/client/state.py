# SPDX-License-Identifier: Apache-2.0
"""What an upload remembers, so that it can go on later: which bytes the server has confirmed as flushed."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ..ranges import RangeSet
from .address import ImageUrl
from .errors import LocalError, StateMismatch
from .plan import Unit

VERSION = 1
SUFFIX = ".imageio-upload"
#: A larger file is not one of ours: a range takes 30 bytes, and there is one for each unit that is out of order.
MAX_FILE = 4 * 1024**2
#: Seconds between two flushes, each followed by a new state: what an interrupted upload sends twice at most.
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
        """Return the (start, end) ranges that are done, none if there is no file. Raises StateMismatch, LocalError."""
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
        """Write the file anew, so that it is either the old or the new one at any time. Raises LocalError."""
        try:
            with self._new.open("w") as file:
                json.dump(self._identity | {"done": done}, file)
                file.flush()
                os.fsync(file.fileno())
            self._new.replace(self.path)
        except OSError as e:
            raise LocalError(f"can't write {self._new}: {e.strerror} (--no-state uploads without it)") from e

    def remove(self) -> None:
        """Remove the file, if there is one, and what a killed upload may have left of its next one."""
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
    """Follow what was sent and what was flushed since, by one life of the server; see Lives. Thread-safe."""

    def __init__(self, done: list[tuple[int, int]], interval: float = CHECKPOINT) -> None:
        self._lock = threading.Lock()
        # Exact: a range that is joined with its neighbour would never be sent.
        self._safe = RangeSet(limit=MAX_FILE)
        for start, end in done:
            self._safe.add(start, end)
        self._sent: list[tuple[Unit, int]] = []
        self._lost: list[Unit] = []
        self._interval = interval
        self._next = time.monotonic() + interval

    def has(self, unit: Unit) -> bool:
        """Tell whether a unit needs not be sent."""
        with self._lock:
            return self._safe.size_with([(unit.start, unit.end)]) == self._safe.size()

    def add(self, unit: Unit, life: int) -> bool:
        """Add a unit whose sending began in this life, and tell one thread at a time that a checkpoint is due."""
        with self._lock:
            self._sent.append((unit, life))
            if time.monotonic() < self._next:
                return False
            self._next = time.monotonic() + self._interval
            return True

    def take_sent(self) -> list[tuple[Unit, int]]:
        """Return what was sent since the last call, before a flush that shall confirm it."""
        with self._lock:
            sent, self._sent = self._sent, []
            return sent

    def give_back(self, sent: list[tuple[Unit, int]]) -> None:
        """Take back what a flush that was not answered has not confirmed."""
        with self._lock:
            self._sent = sent + self._sent

    @property
    def is_waiting(self) -> bool:
        """Tell whether anything was sent that a flush could confirm."""
        with self._lock:
            return bool(self._sent)

    def flushed(self, sent: list[tuple[Unit, int]], life: int) -> None:
        """Take what was sent before a flush, and the life after it: what began in another may be lost."""
        with self._lock:
            for unit, began in sent:
                if began == life:
                    self._safe.add(unit.start, unit.end)
                else:
                    self._lost.append(unit)

    def take_lost(self) -> list[Unit]:
        """Return what has to be sent again, once."""
        with self._lock:
            lost, self._lost = self._lost, []
            return lost

    def safe(self) -> list[tuple[int, int]]:
        """Return the ranges that are on stable storage."""
        with self._lock:
            return self._safe.pieces()
