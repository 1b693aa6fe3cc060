# SPDX-License-Identifier: Apache-2.0
"""Read extents that another server sends as JSON piece by piece, so that a million of them are never in memory."""

import json
from collections.abc import Iterator

from ..units import MAX_OFFSET, KiB
from .extents import Extent

#: The longest text of one extent. Usual ones have about 70 bytes.
MAX_EXTENT_TEXT = 4 * KiB
#: The flags of an extent, in the order of its fields.
FLAGS = Extent._fields[2:]


class ExtentReader:
    """Take the answer in pieces and yield the extents of the first `length` bytes of the image.

    `told` is the flag that the request asked for. No extent may omit it. Methods raise `failure` if the answer is no
    list of extents from 0, in order and without gaps, that covers these bytes.
    """

    def __init__(self, length: int, told: str, failure: Exception) -> None:
        self._position = 0  # where the next extent has to start
        self._end = length
        self._told = told
        self._failure = failure
        self._text = b""
        self._before = b"["  # what stands before the next extent

    @property
    def complete(self) -> bool:
        """Return whether all these bytes were yielded."""
        return self._position >= self._end

    def feed(self, data: bytes) -> Iterator[Extent]:
        """Yield the extents whose text ends in these bytes. Raises `failure`."""
        text = self._text + data
        # Extents are flat objects of numbers and flags. If one has a brace inside, json.loads raises an error.
        end = text.rfind(b"}") + 1
        self._text = text[end:]
        if len(self._text) > MAX_EXTENT_TEXT:
            raise self._failure
        if end:
            for item in self._decode(text[:end].strip()):
                extent = self._extent(item)
                if extent.start < self._end:
                    yield extent._replace(length=min(extent.end, self._end) - extent.start)

    def end(self) -> None:
        """Finish at the end of the answer. Raises `failure` unless it was complete."""
        expected = b"]" if self._before == b"," else b"[]"
        if b"".join(self._text.split()) != expected or not self.complete:
            raise self._failure

    def _decode(self, text: bytes) -> list[object]:
        if text[:1] != self._before:
            raise self._failure
        self._before = b","
        try:
            items: list[object] = json.loads(b"[" + text[1:] + b"]")
        except (ValueError, RecursionError):
            raise self._failure from None
        return items

    def _extent(self, item: object) -> Extent:
        if not isinstance(item, dict) or self._told not in item:
            raise self._failure
        start, length = item.get("start"), item.get("length")
        flags = [item.get(name, False) for name in FLAGS]
        if type(start) is not int or type(length) is not int or any(type(flag) is not bool for flag in flags):
            raise self._failure
        if start != self._position or not 0 < length <= MAX_OFFSET - start:
            raise self._failure
        self._position += length
        return Extent(start, length, *flags)
