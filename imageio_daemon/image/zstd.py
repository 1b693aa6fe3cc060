# SPDX-License-Identifier: Apache-2.0
"""Bodies that are one frame of zstd (RFC 8878), which C decodes: reasons of a refusal, and totals of the decoders."""

from typing import NamedTuple

from ioutil_ext import ffi, lib

from ..errors import InvalidRequest

#: The name and version of the library.
VERSION = ffi.string(lib.iou_zstd_version()).decode()
#: Most bytes of all decoders of the process that work at a time.
WINDOWS: int = lib.IOU_ZSTD_WINDOWS

_REFUSALS: dict[int, str] = {
    lib.IOU_ZSTD_NO_FRAME: "it does not begin with a frame",
    lib.IOU_ZSTD_HEAD: "its frame has reserved bits, or needs a dictionary",
    lib.IOU_ZSTD_WINDOW: f"its window is larger than {lib.IOU_ZSTD_MAX_WINDOW} bytes",
    lib.IOU_ZSTD_LENGTH: "its content has not as many bytes as Content-Range",
    lib.IOU_ZSTD_CUT: "it ends before its frame",
    lib.IOU_ZSTD_TRAILING: "it has bytes after its frame",
    lib.IOU_ZSTD_IDLE: "it is much longer than its content",
    lib.IOU_ZSTD_DATA: "its data is damaged",
}


def refused(refusal: int) -> InvalidRequest:
    """Return the error of a refused body. `refusal` is the reason, an iou_zstd_refusal."""
    return InvalidRequest(f"Invalid zstd in the body: {_REFUSALS[refusal]}")


class DecoderTotals(NamedTuple):
    """Totals of all decoders, in bytes: their `memory` now, the encoded data `taken`, and the content `made` so far."""

    memory: int
    taken: int
    made: int


def totals() -> DecoderTotals:
    """Return the totals of this process."""
    found = ffi.new("iou_zstd_totals *")
    lib.iou_zstd_get_totals(found)
    return DecoderTotals(int(found.memory), int(found.taken), int(found.made))
