# SPDX-License-Identifier: Apache-2.0
"""The fields that are read from a header, and functions to read them."""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

#: A function that reads at an offset, at most a number of bytes, and fewer at the end of the file.
Read = Callable[[int, int], bytes]


class Backing(NamedTuple):
    """The file below an image, as the header names it. `format` is empty if the header does not say it."""

    name: str
    format: str


class Header(NamedTuple):
    """The other files of an image, and whether it can be zeroed in its metadata alone.

    `data_file` has the data, if it is not in the image itself. Ranges of whole units of `zero_unit` bytes can be zeroed
    without touching data, whatever they hold. It is None if the format cannot do that, or if it is not known.
    """

    backing: Backing | None = None
    data_file: str | None = None
    zero_unit: int | None = None


def unpack(form: Struct, read: Read, offset: int) -> tuple[Any, ...]:
    """Return the fields at an offset. Raises ValueError if the file is too short."""
    return form.unpack(read_exactly(read, offset, form.size))


def read_exactly(read: Read, offset: int, length: int) -> bytes:
    """Return the bytes at an offset. Raises ValueError if the file is too short."""
    data = read(offset, length)
    if len(data) != length:
        raise ValueError("the header is cut short")
    return data


def require_magic(read: Read, offset: int, magic: bytes, name: str) -> None:
    """Raise ValueError unless the magic is at the offset."""
    if read(offset, len(magic)) != magic:
        raise ValueError(f"this is no {name} image")
