# SPDX-License-Identifier: Apache-2.0
"""Lanes of NBD: C serves the transmission phase of a connection."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ioutil_ext import ffi, lib

from ..nbdproto.constants import Command
from ..storage.running import Kind
from .lane import Lane
from .terms import Terms, bits

#: The error message of replies after the transfer has ended.
ENDED: str = ffi.string(lib.iou_nbd_text(lib.IOU_NBD_ENDED)).decode()

_COMMANDS = {command.value: command.name for command in Command}


@dataclass(frozen=True)
class NbdTerms(Terms):
    """The results of the negotiation.

    context_id: of base:allocation. errors: the NBD error for each errno; EIO for all others. structured, extended: the
    kinds of replies. allocation: base:allocation was selected. can_flush: FLUSH and FUA are offered. reply: bytes that
    the lane sends first.
    """

    context_id: int
    errors: Mapping[int, int]
    structured: bool
    extended: bool
    allocation: bool
    can_flush: bool
    reply: bytes

    @property
    def flags(self) -> int:
        """Return the iou_lane_flag bits of these terms."""
        flags = {
            lib.IOU_LANE_STRUCTURED: self.structured,
            lib.IOU_LANE_EXTENDED: self.extended,
            lib.IOU_LANE_ALLOCATION: self.allocation,
            lib.IOU_LANE_NO_FLUSH: not self.can_flush,
        }
        return super().flags | bits(flags)

    def start(self, lanes: Any, handle: Any, common: Any, result: Any) -> int:
        """Start the lane; return 0 or a negative errno."""
        errors = ffi.new("uint32_t[]", max(self.errors) + 1)
        for number, error in self.errors.items():
            errors[number] = error
        options = ffi.new("iou_nbd_options *")
        options.lane = common
        options.context = self.context_id
        options.errors = errors
        options.errors_count = len(errors)
        options.reply = opening = ffi.from_buffer(self.reply)  # kept alive until C has copied it
        options.reply_length = len(opening)
        return int(lib.iou_nbd_start(lanes, handle, options, result))


#: What other services call these operations.
_OPERATIONS = {Command.WRITE_ZEROES: Kind.ZERO, Command.BLOCK_STATUS: Kind.EXTENTS}


class NbdLane(Lane):
    """A connection whose NBD requests C serves."""

    @staticmethod
    def operation(record: Any) -> str:
        """Return the name of what a request does."""
        return _OPERATIONS.get(record.kind, _COMMANDS.get(record.kind, "unknown").lower())

    @staticmethod
    def describe(record: Any) -> dict[str, object]:
        """Return the fields of a request's log line, with the numbers that the client sent."""
        return {
            "command": _COMMANDS.get(record.kind, record.kind),
            "offset": record.offset,
            "length": record.length,
            "flags": f"{record.flags:#x}",
            "error": record.result,
        }
