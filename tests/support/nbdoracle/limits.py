# SPDX-License-Identifier: Apache-2.0
"""Limits and texts of errors of the transmission phase, from C."""

from imageio_daemon.units import KiB
from ioutil_ext import ffi, lib

#: A refused payload that is longer is not read. The connection ends instead.
MAX_DRAINED_PAYLOAD: int = lib.MAX_DRAINED
#: Most extents in one reply.
MAX_EXTENTS: int = lib.MAX_STATUS_EXTENTS
#: The largest 32-bit length of a compact extent that is a multiple of every block size.
MAX_COMPACT_EXTENT = 2**32 - 64 * KiB


def _text(reason: int) -> str:
    return str(ffi.string(lib.iou_nbd_text(reason)).decode())


FAILED, ENDED, NOT_FAST = map(_text, (lib.IOU_NBD_FAILED, lib.IOU_NBD_ENDED, lib.IOU_NBD_NOT_FAST))
OUTSIDE, TOO_LONG, NO_MEMORY = map(_text, (lib.IOU_NBD_OUTSIDE, lib.IOU_NBD_TOO_LONG, lib.IOU_NBD_NO_MEMORY))
