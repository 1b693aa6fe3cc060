# SPDX-License-Identifier: Apache-2.0
"""Images with tickets, for tests."""

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon

KiB = 1024
MiB = 1024 * KiB

MakeImage = Callable[..., "Image"]


@dataclass(frozen=True)
class Image:
    """A file or device and a ticket for it. `url` is the path of the image in a service."""

    path: Path
    ticket: str

    @property
    def url(self) -> str:
        return f"/images/{self.ticket}"

    def content(self) -> bytes:
        return self.path.read_bytes()

    def read(self, offset: int, length: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(length)


def pattern(length: int, seed: int = 0) -> bytes:
    """Return bytes in which no two blocks are equal, so that a block in the wrong place is seen."""
    return hashlib.shake_128(seed.to_bytes(8)).digest(length)


def make_image(daemon: Daemon, directory: Path) -> MakeImage:
    """Return a function that makes images below directory with tickets of daemon.

    content: what a new file holds, default 1 MiB of a pattern. size: makes a hole of that size instead.
    path: an image that exists, a device for instance. ticket_size: default the image's. Other arguments: of the ticket.
    """

    def make(
        content: bytes | None = None,
        *,
        size: int | None = None,
        path: Path | None = None,
        ticket_size: int | None = None,
        **fields: Any,
    ) -> Image:
        if path is None:
            path = directory / f"image-{uuid.uuid4().hex[:8]}"
            if size is None:
                data = pattern(MiB) if content is None else content
                path.write_bytes(data)
                size = len(data)
            else:
                with path.open("wb") as file:
                    file.truncate(size)
        if ticket_size is None:
            ticket_size = size if size is not None else _size_of(path)
        return Image(path, daemon.add_ticket(path, ticket_size, **fields))

    return make


def _size_of(path: Path) -> int:
    with path.open("rb") as file:
        return file.seek(0, 2)
