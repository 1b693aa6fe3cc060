# SPDX-License-Identifier: Apache-2.0
"""The transmission phase of NBD connections, served by C."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ioutil_ext import ffi, lib

from .lane import Terms, bits


@dataclass(frozen=True)
class NbdTerms(Terms):
    """What was negotiated besides. errors: NBD's, by errno, where EIO is what is missing; reply: what is sent first."""

    context_id: int
    errors: Mapping[int, int]
    structured: bool
    extended: bool
    allocation: bool
    reply: bytes

    @property
    def flags(self) -> int:
        """Return what of it C has as flags."""
        flags = {
            lib.IOU_LANE_STRUCTURED: self.structured,
            lib.IOU_LANE_EXTENDED: self.extended,
            lib.IOU_LANE_ALLOCATION: self.allocation,
        }
        return super().flags | bits(flags)

    def start(self, lanes: Any, handle: Any, common: Any, result: Any) -> int:
        """Start the lane."""
        errors = ffi.new("uint32_t[]", max(self.errors) + 1)
        for number, error in self.errors.items():
            errors[number] = error
        options = ffi.new("iou_nbd_options *")
        options.lane = common
        options.context = self.context_id
        options.errors = errors
        options.errors_count = len(errors)
        options.reply = opening = ffi.from_buffer(self.reply)  # kept until C has copied it
        options.reply_length = len(opening)
        return int(lib.iou_nbd_start(lanes, handle, options, result))
