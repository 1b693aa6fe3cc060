# SPDX-License-Identifier: Apache-2.0
"""The record of what uploads have left on stable storage: the server has it, or a file here, or nobody."""

from ...image.ranges import RangeSet
from ..errors import Refused
from ..server.image import Image
from .confirmed import new_ranges
from .state import StateFile

#: Ranges of the record begin at a multiple of this, in bytes, as those do whose checksum a server computes.
ALIGNMENT = 4096


class Record:
    """What need not be sent again. Why there are two: docs/adr/0024.

    on_server: the server has the record. file: where it is kept otherwise; None: nowhere.
    """

    def __init__(self, *, on_server: bool = False, file: StateFile | None = None) -> None:
        self._on_server = on_server
        self._file = file

    @property
    def is_kept(self) -> bool:
        """Tell whether the next upload can go on where this one ends."""
        return self._on_server or self._file is not None

    def load(self, image: Image, size: int) -> RangeSet:
        """Return which of the first `size` bytes are on stable storage.

        Raises StateMismatch, LocalError, and the errors of Image.
        """
        found = self._file.load() if self._file else self.durable(image).pieces()
        return new_ranges((-(-start // ALIGNMENT) * ALIGNMENT, min(end, size)) for start, end in found)

    def durable(self, image: Image) -> RangeSet:
        """Return what the server has in its record now; nothing if the record is not there. Raises those of Image."""
        if not self._on_server:
            return new_ranges()
        try:
            extents = image.extents("durable")
        except Refused as e:
            if e.http_status != 404:
                raise
            self._on_server = False
            return new_ranges()
        return new_ranges((extent.start, extent.end) for extent in extents if extent.durable)

    def save(self, durable: list[tuple[int, int]]) -> None:
        """Write the file, if it has the record. Raises LocalError."""
        if self._file:
            self._file.save(durable)

    def discard(self) -> None:
        """Remove the file, so that the next upload begins anew. Raises LocalError."""
        if self._file:
            self._file.remove()

    def close(self) -> None:
        """Discard the record for good, because the storage may have lost what it tells. Raises LocalError."""
        self.discard()
        self._file = None
        self._on_server = False
