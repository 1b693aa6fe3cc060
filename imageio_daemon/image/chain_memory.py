# SPDX-License-Identifier: Apache-2.0
"""The description of a chain of qcow2 files that C reads while it opens them, and C's verdict."""

import os
from collections.abc import Sequence
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import BitmapInUse, Error, NotFound
from .chain import File


class ChainMemory:
    """The memory of a description. Keep it until C has opened the image.

    `files` are those of the image, top first, by absolute paths. `bitmap` is the bitmap of the top whose changes are
    told.
    """

    def __init__(self, files: Sequence[File], bitmap: str | None = None) -> None:
        self._texts: list[Any] = []
        layers = ffi.new("iou_qcow2_layer[]", len(files))
        for layer, file in zip(layers, files, strict=True):
            layer.path = self._text(file.path)
            layer.backing = ffi.NULL if file.backing is None else self._text(file.backing)
            layer.raw = file.format == "raw"
        self._layers = layers
        self._verdict = ffi.new("iou_qcow2_verdict *")
        self.chain = ffi.new("iou_qcow2_chain *", {"layers": layers, "count": len(files), "verdict": self._verdict})
        self.chain.bitmap = ffi.NULL if bitmap is None else self._text(bitmap)

    @property
    def judgment(self) -> int:
        """Return C's judgment, an iou_qcow2_judgment, or 0 if opening has failed otherwise."""
        return int(self._verdict.judgment)

    @property
    def reason(self) -> str:
        """Return why C does not serve the image, in a few words."""
        return str(ffi.string(self._verdict.reason).decode(errors="replace"))

    def why_no_bitmap(self) -> Error | None:
        """Return why C cannot use the bitmap, if it cannot."""
        if self._verdict.bitmap == lib.IOU_QCOW2_BITMAP_TOLD:
            return None
        if self._verdict.bitmap == lib.IOU_QCOW2_BITMAP_IN_USE:
            return BitmapInUse()
        return NotFound("The image does not have the bitmap that the ticket names")

    def _text(self, text: str) -> Any:
        self._texts.append(ffi.new("char[]", os.fsencode(text)))
        return self._texts[-1]
