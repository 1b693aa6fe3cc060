# SPDX-License-Identifier: Apache-2.0
"""Exports of NBD servers as local images: nbd://HOST/NAME, nbds:// with TLS, nbd+unix:///NAME?socket=PATH.

The client treats them as raw images. It opens several connections only if the server says that all of them see the same
image (NBD_FLAG_CAN_MULTI_CONN of proto.md). Other servers may refuse a second connection, or flush only the writes of
the connection that sends the flush.
"""

from collections.abc import Iterator, Mapping

from ...errors import InvalidRequest
from ...image.extents import Extent
from ...image.ranges import RangeSet
from ...nbdproto.constants import ExportFlag
from ...units import MiB
from ...urls import nbd
from ..errors import LocalError, Usage
from ..stopping import Stop
from .nbd_image import NbdImage, Secure


class _Export:
    """The common part of NbdSource and NbdTarget. Methods raise LocalError."""

    portion = 32 * MiB

    def __init__(self, uri: str, secure: Secure | None, *, dirty: bool = False) -> None:
        self._uri = uri
        self._stop = Stop()
        self._image = NbdImage(uri, _parse(uri), self._stop, secure, is_ours=False, dirty=dirty)

    def stop(self) -> None:
        """Make waiting and later calls raise Stopped."""
        self._stop.stop()


class NbdSource(_Export):
    """An export to read. As for block devices, only a dirty bitmap shows whether it has changed."""

    is_stream = False
    identity: Mapping[str, object] | None = None

    def __init__(self, uri: str, secure: Secure | None, bitmap: str | None = None) -> None:
        super().__init__(uri, secure, dirty=bitmap is not None)
        self._bitmap = bitmap

    @property
    def size(self) -> int:
        """Return the size, in bytes."""
        return self._image.size

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps, or one extent of data if the server has no extents."""
        return self._image.extents()

    def changed(self) -> RangeSet | None:
        """Return the ranges that the bitmap marks, or larger ones, or None if the server does not send the bitmap."""
        return None if self._bitmap is None else self._image.changed(self._bitmap)

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        self._image.read(offset, buffer)

    def check(self) -> None:
        """Do nothing: an export has no identity that could change."""

    def close(self) -> None:
        """Disconnect."""
        self._image.close()


class NbdTarget(_Export):
    """An export to write in place. Its bytes beyond the end of the image do not change."""

    block = 1
    reads_zero = False

    def __init__(self, uri: str, secure: Secure | None) -> None:
        super().__init__(uri, secure)
        try:
            self._require_writable()
        except LocalError:
            self._image.close()
            raise

    def _require_writable(self) -> None:
        if self._image.can(ExportFlag.READ_ONLY):
            raise LocalError(f"{self._uri} can't be written: its server says that it is read-only")
        if not self._image.can(ExportFlag.SEND_FLUSH):
            raise LocalError(f"{self._uri} can't be written: its server has no flush, so nothing would be stable there")

    def start(self, size: int) -> None:
        """Raise LocalError unless the image fits into the export."""
        if size > self._image.size:
            raise LocalError(f"{self._uri} has {self._image.size} bytes, the image {size}: it does not fit")

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""
        self._image.write(offset, data)

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""
        self._image.zero(offset, length)

    def finish(self) -> None:
        """Flush, and disconnect."""
        self._image.flush()
        self._image.close()

    def abandon(self) -> None:
        """Disconnect. What was written stays."""
        self._image.close()


def _parse(uri: str) -> nbd.NbdAddress:
    try:
        return nbd.parse(uri)
    except InvalidRequest as e:
        raise Usage(str(e)) from None
