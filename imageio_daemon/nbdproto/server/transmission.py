# SPDX-License-Identifier: Apache-2.0
"""What the server's negotiation agrees on for the transmission phase."""

from dataclasses import dataclass

from ..constants import ExportFlag

#: The id of base:allocation, the only metadata context. Its value has no meaning.
ALLOCATION_ID = 1


@dataclass(frozen=True)
class Export:
    """An image as a client sees it. size: bytes. can_flush: FLUSH and FUA are offered."""

    name: str
    size: int
    read_only: bool = False
    can_flush: bool = True
    description: str = ""

    def flags(self, *, chunks: bool) -> int:
        """Return the transmission flags (ExportFlag). chunks: structured replies or extended headers are in use."""
        flags = ExportFlag.HAS_FLAGS | ExportFlag.CAN_MULTI_CONN | ExportFlag.SEND_CACHE
        if self.can_flush:
            flags |= ExportFlag.SEND_FLUSH | ExportFlag.SEND_FUA
        if self.read_only:
            flags |= ExportFlag.READ_ONLY
        else:
            flags |= ExportFlag.SEND_TRIM | ExportFlag.SEND_WRITE_ZEROES | ExportFlag.SEND_FAST_ZERO
        if chunks:
            flags |= ExportFlag.SEND_DF
        return flags


@dataclass(frozen=True)
class Transmission:
    """The result of the negotiation. allocation: base:allocation is selected for BLOCK_STATUS."""

    export: Export
    structured: bool
    extended: bool
    allocation: bool


@dataclass
class Agreement:
    """What is agreed on so far. `selected`: the name of the export that base:allocation is selected for."""

    structured: bool = False
    extended: bool = False
    selected: str | None = None

    @property
    def chunks(self) -> bool:
        """Tell whether replies are sent in chunks."""
        return self.structured or self.extended

    def transmission(self, export: Export) -> Transmission:
        """Return the result for this export."""
        return Transmission(
            export, structured=self.structured, extended=self.extended, allocation=self.selected == export.name
        )
