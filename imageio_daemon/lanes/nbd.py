# SPDX-License-Identifier: Apache-2.0
"""Lanes of NBD: C serves the transmission phase of a connection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ioutil_ext import ffi, lib

from ..nbdproto.constants import Command
from ..storage.operation import Kind
from .lane import Lane, Terms, bits

#: The error message of replies after the transfer has ended.
ENDED: str = ffi.string(lib.iou_nbd_text(lib.IOU_NBD_ENDED)).decode()

_COMMANDS = {command.value: command.name for command in Command}


@dataclass(frozen=True)
class NbdTerms(Terms):
    """The results of the negotiation.

    `contexts` has the ids of the selected contexts: 1 is base:allocation, 2 the first bitmap of the image, and so on.
    `errors` has the NBD error for each errno. All others become EIO. `structured` and `extended` choose the kind of
    replies. With `can_flush`, the server offers FLUSH and FUA. The lane sends `reply` first.
    """

    contexts: Sequence[int]
    errors: Mapping[int, int]
    structured: bool
    extended: bool
    can_flush: bool
    reply: bytes

    @property
    def flags(self) -> int:
        """Return the iou_lane_flag bits of these terms."""
        flags = {
            lib.IOU_LANE_STRUCTURED: self.structured,
            lib.IOU_LANE_EXTENDED: self.extended,
            lib.IOU_LANE_STATUS: bool(self.contexts),
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
        contexts = ffi.new("iou_lane_context[]", [(number, _tells(number)) for number in self.contexts])
        options.contexts, options.contexts_count = contexts, len(self.contexts)
        options.errors = errors
        options.errors_count = len(errors)
        options.reply = opening = ffi.from_buffer(self.reply)  # kept alive until C has copied it
        options.reply_length = len(opening)
        return int(lib.iou_nbd_start(lanes, handle, options, result))


def _tells(context: int) -> int:
    """Return the iou_extent_flag that a context shows."""
    return int(lib.IOU_EXTENT_ZERO if context == 1 else lib.IOU_EXTENT_DIRTY << (context - 2))


#: The names of operations that have the same name in all services. Others have their names in NBD.
_OPERATIONS = {Command.WRITE_ZEROES: Kind.ZERO, Command.BLOCK_STATUS: Kind.EXTENTS}


class NbdLane(Lane):
    """A connection whose NBD requests C serves."""

    @staticmethod
    def operation(record: Any) -> str:
        """Return the name of the operation of a request."""
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
