# SPDX-License-Identifier: Apache-2.0
"""The storage engine in C: images, zeroing, worker threads. ``ioutil_api.h`` is its documentation."""

from typing import Any

from ioutil_ext._ioutil import ffi, lib

__all__ = ["ffi", "is_zero", "lib"]


def is_zero(buffer: Any) -> bool:
    """Tell whether all bytes of a contiguous buffer are zero, at memory speed and without the GIL."""
    data = ffi.from_buffer(buffer)
    return bool(lib.iou_is_zero(data, len(data)))
