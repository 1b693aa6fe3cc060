# SPDX-License-Identifier: Apache-2.0
"""The record of what uploads have left on stable storage: that of the server, and a file here for other tickets."""

import logging
from collections.abc import Iterable, Iterator

from ...image.ranges import RangeSet
from ..errors import Refused
from ..server.image import RemoteImage
from .confirmed import new_ranges
from .state import Claim, States

log = logging.getLogger(__name__)

#: What is compared begins at a multiple of this, in bytes, as the ranges do whose checksum a server computes.
ALIGNMENT = 4096


def aligned(ranges: Iterable[tuple[int, int]]) -> RangeSet:
    """Return the parts of (start, end) ranges that can be compared."""
    return new_ranges((-(-start // ALIGNMENT) * ALIGNMENT, end) for start, end in ranges)


class Record:
    """What need not be sent again. Why there are two: docs/adr/0037.

    on_server: the server has a record for the ticket. states: where this side keeps what is done; None: nowhere.
    """

    def __init__(self, *, on_server: bool = False, states: States | None = None) -> None:
        self._on_server = on_server
        self._states = states

    @property
    def is_kept(self) -> bool:
        """Tell whether the next upload can go on where this one ends."""
        return self._on_server or self._states is not None

    def durable(self, image: RemoteImage) -> RangeSet:
        """Return what the server has in its record now; nothing if there is none. Raises as RemoteImage does."""
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

    def claims(self) -> Iterator[Claim]:
        """Yield what uploads from this host have sent, perhaps to this target; see States.claims()."""
        if self._states:
            yield from self._states.claims()

    def save(self, durable: list[tuple[int, int]]) -> None:
        """Write the file. An upload whose file cannot be written goes on without it."""
        if self._states:
            try:
                self._states.save(durable)
            except OSError as e:
                log.warning("%s", _not_kept(e))
                self._states = None

    def discard(self) -> None:
        """Remove the file, so that the next upload begins anew."""
        if self._states:
            try:
                self._states.remove()
            except OSError as e:
                log.warning("%s", _not_kept(e))

    def release(self) -> None:
        """Let the next upload use the file."""
        if self._states:
            self._states.release()

    def close(self) -> None:
        """Discard the record for good, because the storage may have lost what it tells."""
        self.discard()
        self._states = None
        self._on_server = False


def _not_kept(error: OSError) -> str:
    return f"can't keep what is done in {error.filename}: {error.strerror} (--state-dir DIR keeps it elsewhere)"
