# SPDX-License-Identifier: Apache-2.0
"""Hashing of parts of a source."""

from ..local.source import Source
from .digest import DigestPart
from .plan import Unit


def hash_unit(source: Source, unit: Unit, buffer: memoryview, digest: DigestPart) -> None:
    """Add a unit of the source to the digest."""
    for start, length, zero in unit.segments:
        if zero:
            digest.zeros(length)
        else:
            for offset in range(start, start + length, len(buffer)):
                data = buffer[: start + length - offset]
                source.read(offset, data)
                digest.data(data)
    digest.end()
