# SPDX-License-Identifier: Apache-2.0
"""Which requests are served by callbacks: plain ones for an open image that fit one buffer.

Whatever is not plain, or is refused before its body came, goes to the fast lane, which finds and answers the reason
once more: refusals are written once.
"""

import re

from ...buffers import PAGE, Buffers
from ...errors import Error
from ...starting import readable_size
from ...tickets import Access
from ...transferstore import TransferStore
from .framing import Head
from .headers import parse_content_range, parse_range
from .images import partial_headers
from .messages import WRITE_PIECE, Response
from .short import Found, Short, ShortGet, ShortLine, ShortPatch, ShortPut

#: Fields that matter and are not known here; http_head.c has the same. All others have no part in the answer, but those
#: of framing, Range and Content-Range.
_OTHER_FIELDS = frozenset(
    (
        "access-control-request-headers",
        "access-control-request-method",
        "content-encoding",
        "expect",
        "if-match",
        "if-range",
        "origin",
        "transfer-encoding",
        "upgrade",
    )
)
#: No escapes, no other parameters.
_TARGET = re.compile(r"/images/([0-9A-Za-z._~-]+)(?:\?flush=([yn]))?", re.ASCII)
#: Largest body of a PATCH that is served here. Programs send less than 100 bytes.
MAX_PATCH = 1024


def plain_target(head: Head) -> tuple[str, str | None] | None:
    """Return which image a plain request is about, and what it says of flush; None: it is another one."""
    if head.version != "1.1" or not _OTHER_FIELDS.isdisjoint(head.fields):
        return None
    if head.fields.get("connection", "keep-alive") != "keep-alive":
        return None
    target = _TARGET.fullmatch(head.target)
    return None if target is None else (target[1], target[2])


class Express:
    """Take short requests for images."""

    def __init__(self, store: TransferStore, buffers: Buffers) -> None:
        self._store = store
        self._buffers = buffers

    def take(self, head: Head, line: ShortLine) -> Short | None:
        """Return the request at work, or None: somebody else shall serve it.

        Then nothing has happened, but that the connection may count as one of the transfer's.
        """
        target = plain_target(head)
        if target is None:
            return None
        name, flush = target
        length = int(head.fields.get("content-length", "0"))
        short: Short | None = None
        try:
            if head.method == "PUT":
                short = self._put(head, line, name, length, flush=flush != "n")
            elif head.method == "GET" and not length and flush is None:
                short = self._get(head, line, name)
            elif head.method == "PATCH" and 0 < length <= MAX_PATCH and flush is None:
                short = ShortPatch(head, line, name, length, self._attach)
        except Error:
            return None  # it is found again, and answered, by the handlers
        return short

    def _attach(self, name: str, line: ShortLine, access: Access) -> Found | None:
        """Return what the request is about, if the image is open. Raises Forbidden, TooManyConnections."""
        transfer = self._store.authorize(name, access)
        line.use(transfer)
        backend = transfer.opened
        return None if backend is None else (transfer, backend)

    def _put(self, head: Head, line: ShortLine, name: str, length: int, *, flush: bool) -> Short | None:
        offset = parse_content_range(head.fields.get("content-range"))
        # The same place in a page as in the image, so that whole blocks are not copied by the storage.
        start = offset % PAGE
        if not 0 < length <= self._buffers.size - PAGE or (found := self._attach(name, line, Access.WRITE)) is None:
            return None
        buffer = self._buffers.pool.try_acquire(start + length, found[0])
        if buffer is None:
            return None
        try:
            return ShortPut(head, line, found, offset, buffer, start, length, flush=flush)
        except Error:
            buffer.release()
            raise

    def _get(self, head: Head, line: ShortLine, name: str) -> Short | None:
        wanted = parse_range(head.fields.get("range"))
        if wanted is None or wanted.first is None or wanted.last is None:
            return None
        if (found := self._attach(name, line, Access.READ)) is None:
            return None
        transfer, backend = found
        size = transfer.ticket.size
        # What is known of a smaller image may be old.
        if not transfer.covered and readable_size(transfer, backend) < size:
            return None
        offset, length = wanted.resolve(size, size)
        start = PAGE + offset % PAGE
        if length > WRITE_PIECE:
            return None
        buffer = self._buffers.pool.try_acquire(start + length, transfer)
        if buffer is None:
            return None
        headers = partial_headers(transfer.ticket, offset, length, size)
        try:
            return ShortGet(head, line, found, offset, buffer, start, length, Response(206, headers, length=length))
        except Error:
            buffer.release()
            raise
