# SPDX-License-Identifier: Apache-2.0
"""The state of an upload in a file, where the server keeps none: the ranges that it has flushed."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import LocalError, StateMismatch
from ..server.address import ImageUrl

VERSION = 1
SUFFIX = ".imageio-upload"
#: Largest state file, in bytes. A range takes 30 bytes, and connections work at a few places at a time.
MAX_FILE = 4 * 1024**2


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
            raise StateMismatch(f"{self.path} is not the state of an upload: --restart starts anew") from e
        for part in ("version", "source", "target"):
            if content.get(part) != self._identity[part]:
                raise StateMismatch(
                    f"{self.path} is the state of another upload: the {part} has changed. --restart starts anew"
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
