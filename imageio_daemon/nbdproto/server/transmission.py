# SPDX-License-Identifier: Apache-2.0
"""What the server's negotiation agrees on for the transmission phase."""

from dataclasses import dataclass

from ..constants import BASE_ALLOCATION, ExportFlag


@dataclass(frozen=True)
class Export:
    """An image as a client sees it. size: bytes. can_flush: FLUSH and FUA are offered.

    contexts: names of the metadata contexts that it has; the id of each is its place, from 1 on.
    """

    name: str
    size: int
    read_only: bool = False
    can_flush: bool = True
    description: str = ""
    contexts: tuple[str, ...] = (BASE_ALLOCATION,)

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
    """The result of the negotiation. contexts: ids of those that are selected for BLOCK_STATUS, in ascending order."""

    export: Export
    structured: bool
    extended: bool
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """The contexts that the client has selected (NBD_OPT_SET_META_CONTEXT).

    name: of the export. offered: the contexts that it had then. ids: those that are selected. changes: the client has
    asked for a dirty bitmap, so that it must not take an export without one for one that has not changed.
    """

    name: str
    offered: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    changes: bool = False


@dataclass
class Agreement:
    """What is agreed on so far. `selected`: the last selection, also if it was refused."""

    structured: bool = False
    extended: bool = False
    selected: Selection | None = None

    @property
    def chunks(self) -> bool:
        """Tell whether replies are sent in chunks."""
        return self.structured or self.extended

    def transmission(self, export: Export) -> Transmission:
        """Return the result for this export."""
        selected = self.selected
        # An image that was opened again meanwhile may have other bitmaps, to which the ids would belong.
        holds = selected is not None and (selected.name, selected.offered) == (export.name, export.contexts)
        ids = selected.ids if selected is not None and holds else ()
        return Transmission(export, structured=self.structured, extended=self.extended, contexts=ids)

    def wants_changes(self, name: str) -> bool:
        """Tell whether the client has asked for a dirty bitmap of this export."""
        return self.selected is not None and self.selected.name == name and self.selected.changes
