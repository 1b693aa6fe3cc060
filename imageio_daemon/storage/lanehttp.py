# SPDX-License-Identifier: Apache-2.0
"""Requests of HTTP for one image, served by C until something else comes."""

import errno
from dataclasses import dataclass
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import Error, StorageError, Truncated
from .completions import describe, no_fault, syscall_name
from .lane import Lane, Terms

#: What stands in a template for what C fills in.
FIRST, LAST, LENGTH, DATE = map(chr, (lib.IOU_HTTP_FIRST, lib.IOU_HTTP_LAST, lib.IOU_HTTP_LENGTH, lib.IOU_HTTP_DATE))


@dataclass(frozen=True)
class HttpTerms(Terms):
    """What requests are about, and how they are answered when all goes well.

    target: the path of the image; done: an answer without data, with DATE; partial: the head of one with data, with
    FIRST and LAST, LENGTH and DATE, each once.
    """

    target: bytes
    done: bytes
    partial: bytes

    def start(self, lanes: Any, handle: Any, common: Any, result: Any) -> int:
        """Start the lane."""
        options = ffi.new("iou_http_options *")
        options.lane = common
        texts = {"target": self.target, "done": self.done, "partial": self.partial}
        kept = []  # until C has copied them
        for name, text in texts.items():
            kept.append(ffi.from_buffer(text))
            setattr(options, name, kept[-1])
            setattr(options, f"{name}_length", len(text))
        return int(lib.iou_http_start(lanes, handle, options, result))


class HttpEnd(NamedTuple):
    """Why a lane gave its connection back.

    other: something came that C does not serve. error: what a request failed of, of whose body `unread` bytes were
    not taken. cut: and its answer had begun. broken: the connection is of no use any more, for this errno; a request
    may have failed besides. rest: the client's bytes that were not taken.
    """

    other: bool
    error: Error | None
    unread: int
    cut: bool
    broken: int | None
    rest: bytes


class HttpLane(Lane):
    """A lane of HTTP."""

    def cancel(self) -> None:
        """Make a request that runs end at its next step, and the lane with it."""
        super().cancel()
        self.refuse()

    def end(self) -> HttpEnd:
        """Tell why the lane has ended; called by its watch() at the end."""
        end = ffi.new("iou_http_end *")
        rest = ffi.new("char[]", lib.IOU_LANE_MAX_STAGED)
        length = lib.iou_http_ended(self._lane, end, rest)
        broken = end.reason == lib.IOU_HTTP_BROKEN
        return HttpEnd(
            other=end.reason == lib.IOU_HTTP_OTHER,
            error=self._error(end),
            unread=end.unread,
            cut=end.reason == lib.IOU_HTTP_CUT,
            broken=int(self.stats.error) if broken else None,
            rest=bytes(ffi.buffer(rest, length)),
        )

    def _error(self, end: Any) -> Error | None:
        if end.reason == lib.IOU_HTTP_TRUNCATED:
            return Truncated("The request's body is shorter than announced")
        if end.reason == lib.IOU_HTTP_BROKEN and end.error == errno.ECANCELED:
            return None
        if not end.error:
            return None
        error = no_fault(end, end.flags)
        if error is not None:
            return error
        what = describe(end.kind, self._path, end.offset, end.length)
        return StorageError(end.error, what, syscall_name(end.syscall))
