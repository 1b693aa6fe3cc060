# SPDX-License-Identifier: Apache-2.0
"""Checks of the target before the first byte is sent: whether it has room for the data, and the size."""

from collections import deque
from collections.abc import Iterator

from ...commands.amounts import human
from ..errors import ChecksumMismatch, NoRoom, Refused
from ..local.source import Source
from ..server.data import Piece
from ..server.remote_image import RemoteImage
from .record import ALIGNMENT

#: The status of a server for a range outside of the image (RFC 9110 15.5.17).
OUTSIDE = 416


def no_room(source: Source, available: int | None) -> Iterator[NoRoom]:
    """Yield an error if the source has more data than the `available` bytes for the target, if these are known.

    Zeros inside data count as data, because they are unknown before they are read. Raises LocalError.
    """
    if available is None or source.size <= available:
        return
    data = sum(extent.length for extent in source.extents() if not extent.zero)
    if data > available:
        yield NoRoom(
            f"the source has {human(data)} of data, and the storage of the target has room for {human(available)}: "
            "make room, or say --no-room-check if much of the data is zeros"
        )


def write_end(image: RemoteImage, source: Source) -> None:
    """Write the last byte, so that a too small target fails now and not at the end. Raises LocalError, as RemoteImage.

    The next flush records it, so it is that of the source, except for a stream, where it is not known yet and zero.
    """
    last = source.size - 1
    start = last // ALIGNMENT * ALIGNMENT  # some sources are read in sectors only
    end = memoryview(bytearray(source.size - start))
    if not source.is_stream:
        source.read(start, end)
    try:
        if end[-1]:
            image.write([Piece(last, end[-1:])])
        else:
            deque(image.zero(last, 1), maxlen=0)
    except Refused as e:
        if e.http_status == OUTSIDE:
            e.args = (f"{e}; the image has {source.size} bytes",)
        raise


def not_verifiable(target: int, source: int) -> ChecksumMismatch:
    """Return the error for sizes of target and source, in bytes, with which no checksum compares them."""
    return ChecksumMismatch(
        f"can't verify: the target has {target} bytes, the source {source}, and the server's checksum is that of the "
        "whole target: make it as large as the source, or upload without --verify"
    )
