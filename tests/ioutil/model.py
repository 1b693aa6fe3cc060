# SPDX-License-Identifier: Apache-2.0
"""What an image must contain, kept in memory beside it."""

import errno
import random

from ioutil_ext import lib

from .disk import first_difference
from .engine_driver import Failed, Image, aligned

BLOCK = 4096


class Model:
    """A part of an image that only one thread changes, and what is in it."""

    def __init__(self, image: Image, start: int, content: bytes | bytearray) -> None:
        self.image = image
        self.start = start
        self.content = bytearray(content)

    def write(self, offset: int, data: bytes, flags: int = 0, *, align: bool = False) -> None:
        self.image.write(self.start + offset, aligned(data) if align and data else data, flags)
        self._set(offset, data)

    def zero(self, offset: int, length: int, flags: int = 0) -> None:
        try:
            self.image.zero(self.start + offset, length, flags)
        except Failed as failed:
            if flags & lib.IOU_FAST_ONLY and failed.errno == errno.ENOTSUP:
                return  # nothing may have changed
            raise
        self._set(offset, bytes(length))

    def trim(self, offset: int, length: int) -> None:
        self.image.trim(self.start + offset, length)
        # Trimmed bytes are what they were, or zeros; which ones is the storage's choice.
        end = min(offset + length, len(self.content))
        actual = self.image.read(self.start + offset, max(0, end - offset))
        for index, byte in enumerate(actual):
            if byte != self.content[offset + index]:
                assert byte == 0, f"byte {self.start + offset + index} is neither old nor zero after trim"
                self.content[offset + index] = 0

    def check(self, offset: int, length: int) -> None:
        actual = self.image.read(self.start + offset, length)
        difference = first_difference(actual, self.content[offset : offset + length])
        assert not difference, f"read of {length} at {self.start + offset}: {difference}"

    def _set(self, offset: int, data: bytes) -> None:
        if len(data) == 0:
            return
        gap = offset - len(self.content)
        if gap > 0:
            self.content.extend(bytes(gap))
        self.content[offset : offset + len(data)] = data


def random_operation(chance: random.Random, model: Model) -> None:
    """Do one of everything, at any alignment, inside the model's part."""
    size = len(model.content)
    offset = chance.randrange(size)
    length = chance.randint(1, size - offset)
    if chance.random() < 0.5:
        length = min(length, chance.choice((1, 100, 512, 4000)))
    if chance.random() < 0.3:
        # Whole blocks of the image, where the part has any.
        begin = -(-(model.start + offset) // BLOCK) * BLOCK - model.start
        blocks = (size - begin) // BLOCK
        if blocks > 0:
            offset, length = begin, chance.randint(1, blocks) * BLOCK
    match chance.randrange(8):
        case 0 | 1 | 2:
            model.write(offset, chance.randbytes(length), align=chance.random() < 0.5)
        case 3:
            model.zero(offset, length)
        case 4:
            model.zero(offset, length, lib.IOU_ALLOCATE)
        case 5:
            model.zero(offset, length, lib.IOU_FAST_ONLY | chance.choice((0, lib.IOU_ALLOCATE)))
        case 6:
            model.trim(offset, length)
        case 7:
            model.check(offset, length)
