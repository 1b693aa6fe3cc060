# SPDX-License-Identifier: Apache-2.0
"""What C knows of the transmission phase: limits, and texts of errors."""

from imageio_daemon.units import KiB
from ioutil_ext import ffi, lib

#: A longer payload is not read only to be refused: the connection ends.
MAX_DRAINED_PAYLOAD: int = lib.MAX_DRAINED
#: In one reply.
MAX_EXTENTS: int = lib.MAX_STATUS_EXTENTS
#: What the 32-bit length of a compact extent can say, in whole blocks of any size.
MAX_COMPACT_EXTENT = 2**32 - 64 * KiB


def _text(reason: int) -> str:
    return str(ffi.string(lib.iou_nbd_text(reason)).decode())


FAILED, ENDED, NOT_FAST = map(_text, (lib.IOU_NBD_FAILED, lib.IOU_NBD_ENDED, lib.IOU_NBD_NOT_FAST))
OUTSIDE, TOO_LONG, NO_MEMORY = map(_text, (lib.IOU_NBD_OUTSIDE, lib.IOU_NBD_TOO_LONG, lib.IOU_NBD_NO_MEMORY))
