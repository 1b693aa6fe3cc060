# SPDX-License-Identifier: Apache-2.0
"""The decoder of bodies that are one frame of zstd (RFC 8878), in C; and why one is refused."""

from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import InvalidRequest

#: The library, with its version.
VERSION = ffi.string(lib.iou_zstd_version()).decode()
#: Bytes of the windows of all decoders that work at a time.
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
    """Return the error of a body that is refused for this reason, an iou_zstd_refusal."""
    return InvalidRequest(f"Invalid zstd in the body: {_REFUSALS[refusal]}")


def cut() -> InvalidRequest:
    """Return the error of a body that ends before its frame."""
    return refused(lib.IOU_ZSTD_CUT)


class Totals(NamedTuple):
    """What all decoders have, and have done, in bytes.

    memory: what they may take now. taken: of encoded data. made: of content.
    """

    memory: int
    taken: int
    made: int


def totals() -> Totals:
    """Return the totals of this process, of lanes and of Python."""
    found = ffi.new("iou_zstd_totals *")
    lib.iou_zstd_get_totals(found)
    return Totals(int(found.memory), int(found.taken), int(found.made))


class Decoder:
    """Decode one frame with `length` bytes of content, at least 1. Close it, which frees its memory.

    left: bytes of content that are still to come. ended: the frame has ended, and all is as announced.
    """

    def __init__(self, length: int) -> None:
        made = ffi.new("iou_zstd **")
        if lib.iou_zstd_new(length, made):
            raise MemoryError("no memory for a decoder")
        self._decoder: Any = ffi.gc(made[0], lib.iou_zstd_free)
        self._step = ffi.new("iou_zstd_step *")
        self.left = length
        self.ended = False

    def close(self) -> None:
        """Free the memory. No other call may follow."""
        ffi.release(self._decoder)

    def head(self, data: memoryview) -> tuple[int, int]:
        """Take data of the frame's head. Return how many bytes were taken, and how many decoding needs at most.

        The latter is 0 while the head is not complete. Raises InvalidRequest.
        """
        memory = ffi.new("uint64_t *")
        taken = lib.iou_zstd_head(self._decoder, ffi.from_buffer(data), len(data), memory)
        if taken < 0:
            raise refused(-taken)
        return int(taken), int(memory[0])

    def decode(self, data: memoryview, view: memoryview) -> tuple[int, int]:
        """Decode data behind the head into the view. Return how many bytes were taken, and how many were made.

        One of both is used up, or the frame has ended. Raises InvalidRequest.
        """
        step = self._step
        error = lib.iou_zstd_decode(
            self._decoder, ffi.from_buffer(data), len(data), ffi.from_buffer(view), len(view), step
        )
        if step.refusal:
            raise refused(step.refusal)
        if error:
            raise MemoryError("no memory for a decoder")
        self.left, self.ended = step.left, bool(step.ended)
        return int(step.taken), int(step.made)
