# SPDX-License-Identifier: Apache-2.0
"""Images with tickets, for tests."""

import functools
import hashlib
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, ticket
from tests.support.places import Place

KiB = 1024
MiB = 1024 * KiB

MakeImage = Callable[..., "Image"]


@dataclass(frozen=True)
class Image:
    """An image and a ticket for it. `url` is the path of the image in a service."""

    place: Place
    ticket: str

    @property
    def path(self) -> Path:
        """The file or device, if the place has one."""
        return self.place.path

    @property
    def url(self) -> str:
        return f"/images/{self.ticket}"

    def content(self) -> bytes:
        return self.place.content()

    def read(self, offset: int, length: int) -> bytes:
        return self.place.read(offset, length)


@functools.lru_cache(maxsize=8)  # 8 MiB take 35 ms, and tests of images want them several times each
def pattern(length: int, seed: int = 0) -> bytes:
    """Return bytes in which no two blocks are equal, so that a block in the wrong place is seen."""
    return hashlib.shake_128(seed.to_bytes(8)).digest(length)


def _file(raw: Path, _: Mapping[str, Any]) -> Place:
    return Place(raw)


def make_image(
    daemon: Daemon, directory: Path, place_of: Callable[[Path, Mapping[str, Any]], Place] = _file
) -> MakeImage:
    """Return a function that makes images below directory with tickets of daemon.

    `content` is the content of a new image, by default 1 MiB of a pattern. With `size` the new image is a hole of this
    size instead, with `pieces` of data, by offset. `path` is an existing image, such as a device. `of` is an image for
    another ticket. `ticket_size` is by default the size of the image. Other arguments are fields of the ticket.
    """

    def make(
        content: bytes | None = None,
        *,
        size: int | None = None,
        pieces: Mapping[int, bytes] | None = None,
        path: Path | None = None,
        of: Image | None = None,
        ticket_size: int | None = None,
        **fields: Any,
    ) -> Image:
        if of is not None:
            size = daemon.status(of.ticket)["size"] if ticket_size is None else ticket_size
            return Image(of.place, daemon.add_ticket(of.path, size, **of.place.where, **fields))
        if path is None:
            path = directory / f"image-{uuid.uuid4().hex[:8]}"
            if size is None:
                path.write_bytes(pattern(MiB) if content is None else content)
            else:
                _write_sparse(path, size, pieces or {})
        fields = ticket(path, _size_of(path) if ticket_size is None else ticket_size, **fields)
        place = place_of(path, fields)
        return Image(place, daemon.put_ticket({**fields, **place.where}))

    return make


def _write_sparse(path: Path, size: int, pieces: Mapping[int, bytes]) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in pieces.items():
            os.pwrite(file.fileno(), data, offset)
        os.fsync(file.fileno())


def _size_of(path: Path) -> int:
    with path.open("rb") as file:
        return file.seek(0, 2)
