# SPDX-License-Identifier: Apache-2.0
"""C's decoder of one frame of zstd, without the rest of the daemon."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from imageio_daemon.image.zstd import refused
from ioutil_ext import ffi, lib


class Decoder:
    """Decode one frame with `length` bytes of content, at least 1: head(), admit(), decode(). Close it.

    `left` is how many bytes of content are still to come. `ended` is set when the frame has ended as announced.
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
        """Read data of the frame's head. Return how many bytes were used, and how much memory decoding needs at most.

        The latter is 0 while the head is not complete. Raises InvalidRequest.
        """
        memory = ffi.new("uint64_t *")
        taken = lib.iou_zstd_head(self._decoder, ffi.from_buffer(data), len(data), memory)
        if taken < 0:
            raise refused(-taken)
        return int(taken), int(memory[0])

    def admit(self, owner: int) -> bool:
        """Take the memory that decoding needs, for an owner. Return False if there is none now.

        Then decoders of other owners that wait for their peers are asked to end, so try again in a moment.
        """
        code = lib.iou_zstd_admit(self._decoder, owner)
        if code not in (0, -errno.EAGAIN):
            raise ValueError("the head is not complete, or the memory was taken")
        return bool(code == 0)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Run the block as a wait for the peer."""
        lib.iou_zstd_rest(self._decoder)
        try:
            yield
        finally:
            lib.iou_zstd_go_on(self._decoder)

    @property
    def is_wanted(self) -> bool:
        """Return whether the decoder has to end, because it waits for its peer and another decoder needs the memory."""
        return bool(lib.iou_zstd_is_wanted(self._decoder))

    def decode(self, data: memoryview, view: memoryview) -> tuple[int, int]:
        """Decode data behind the head into the view. Return how many bytes were used, and how many were made.

        Call this after admit(). Ends when data or view are used up, or at the end of the frame. Raises InvalidRequest.
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
