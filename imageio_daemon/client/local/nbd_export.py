# SPDX-License-Identifier: Apache-2.0
"""Exports of NBD servers as local images: nbd://HOST/NAME, nbds:// with TLS, nbd+unix:///NAME?socket=PATH.

The client treats them as raw images. It opens several connections only if the server says that all of them see the same
image (NBD_FLAG_CAN_MULTI_CONN of proto.md). Other servers may refuse a second connection, or flush only the writes of
the connection that sends the flush.
"""

import contextlib

from ...errors import InvalidRequest
from ...image.ranges import RangeSet
from ...nbdproto.constants import ExportFlag
from ...urls import nbd
from ..errors import LocalError, Usage
from .image_source import ImageSource
from .image_target import InPlace
from .nbd_image import NbdImage, Secure


class NbdSource(ImageSource[NbdImage]):
    """An export to read. As for block devices, only a dirty bitmap shows whether it has changed."""

    def __init__(self, uri: str, secure: Secure | None, bitmap: str | None = None) -> None:
        super().__init__(NbdImage(uri, _parse(uri), secure, is_ours=False, dirty=bitmap is not None))
        self._bitmap = bitmap

    def changed(self) -> RangeSet | None:
        """Return the ranges that the bitmap marks, or larger ones, or None if the server does not send the bitmap."""
        return None if self._bitmap is None else self._image.changed(self._bitmap)


class NbdTarget(InPlace[NbdImage]):
    """An export to write in place."""

    def __init__(self, uri: str, secure: Secure | None) -> None:
        image = NbdImage(uri, _parse(uri), secure, is_ours=False)
        super().__init__(uri, image)
        with contextlib.ExitStack() as opened:
            opened.callback(image.close)
            if image.can(ExportFlag.READ_ONLY):
                raise LocalError(f"{uri} can't be written: its server says that it is read-only")
            if not image.can(ExportFlag.SEND_FLUSH):
                raise LocalError(f"{uri} can't be written: its server has no flush, so nothing would be stable there")
            opened.pop_all()


def _parse(uri: str) -> nbd.NbdAddress:
    try:
        return nbd.parse(uri)
    except InvalidRequest as e:
        raise Usage(str(e)) from None
