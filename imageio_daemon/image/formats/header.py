# SPDX-License-Identifier: Apache-2.0
"""The fields that are read from a header, and functions to read them."""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

#: Read at an offset: at most so many bytes, fewer at the end of the file.
Read = Callable[[int, int], bytes]


class Backing(NamedTuple):
    """The file below an image, as the header names it. `format`: empty when the header does not say."""

    name: str
    format: str


class Header(NamedTuple):
    """Name the other files of an image, and what of it can be zeroed in its metadata alone.

    data_file: where its data is, if not in the image itself. zero_unit: bytes; ranges of whole ones are zeroed without
    touching data, whatever they hold. None: not in this format, or nobody knows.
    """

    backing: Backing | None = None
    data_file: str | None = None
    zero_unit: int | None = None


def unpack(form: Struct, read: Read, offset: int) -> tuple[Any, ...]:
    """Return the fields at an offset. Raises ValueError when the file ends before."""
    return form.unpack(read_exactly(read, offset, form.size))


def read_exactly(read: Read, offset: int, length: int) -> bytes:
    """Return the bytes at an offset. Raises ValueError when the file ends before."""
    data = read(offset, length)
    if len(data) != length:
        raise ValueError("the header is cut short")
    return data


def require_magic(read: Read, offset: int, magic: bytes, name: str) -> None:
    """Raise ValueError unless the magic is there."""
    if read(offset, len(magic)) != magic:
        raise ValueError(f"this is no {name} image")
