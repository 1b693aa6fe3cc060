# SPDX-License-Identifier: Apache-2.0
"""What the server's negotiation leads to: events that the caller has to act on, and the agreement for transmission."""

from dataclasses import dataclass

from .constants import BASE_ALLOCATION, ExportFlag


@dataclass(frozen=True)
class Export:
    """An image as a client sees it. `size` is in bytes. `can_flush` tells whether to offer FLUSH and FUA.

    `contexts` has the names of its metadata contexts. The first one has the id 1, the next one 2, and so on.
    """

    name: str
    size: int
    read_only: bool = False
    can_flush: bool = True
    description: str = ""
    contexts: tuple[str, ...] = (BASE_ALLOCATION,)

    def flags(self, *, chunks: bool) -> int:
        """Return the transmission flags (ExportFlag). `chunks` tells whether replies come in chunks (Agreement)."""
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
    """The result of the negotiation. `contexts` has the ids of those selected for BLOCK_STATUS, in ascending order."""

    export: Export
    structured: bool
    extended: bool
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """The contexts that the client has selected (NBD_OPT_SET_META_CONTEXT).

    `name` is the export's name. `offered` has the contexts that the export had then, and `ids` the selected ones.
    `changes` tells that the client has asked for a dirty bitmap. It must not get an export without one, which it would
    take for unchanged.
    """

    name: str
    offered: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    changes: bool = False


@dataclass
class Agreement:
    """The agreement so far. `selected` is the last selection, even if it was refused."""

    structured: bool = False
    extended: bool = False
    selected: Selection | None = None

    @property
    def chunks(self) -> bool:
        """Return whether replies are sent in chunks."""
        return self.structured or self.extended

    def transmission(self, export: Export) -> Transmission:
        """Return the result for this export."""
        selected = self.selected
        # If the image was opened again since the selection, the ids may belong to other bitmaps now.
        holds = selected is not None and (selected.name, selected.offered) == (export.name, export.contexts)
        ids = selected.ids if selected is not None and holds else ()
        return Transmission(export, structured=self.structured, extended=self.extended, contexts=ids)

    def wants_changes(self, name: str) -> bool:
        """Return whether the client has asked for a dirty bitmap of this export."""
        return self.selected is not None and self.selected.name == name and self.selected.changes


@dataclass(frozen=True)
class FindExport:
    """Look up the export and call found() or refused()."""

    name: str
    #: The client enters the export (GO, EXPORT_NAME), which cannot be refused after found().
    enter: bool
    #: The client has asked for a dirty bitmap. If the image should have one that cannot be read, call refused().
    changes: bool = False


@dataclass(frozen=True)
class StartTls:
    """Send the output, complete the TLS handshake, and call tls_started()."""


@dataclass(frozen=True)
class Transmit:
    """Send the output and begin the transmission phase. `rest` has the bytes received after the negotiation."""

    transmission: Transmission
    rest: bytes


@dataclass(frozen=True)
class Close:
    """Send the output and close. `reason` is the client's violation, for the log, or None if the client has left."""

    reason: str | None = None


Event = FindExport | StartTls | Transmit | Close
