# SPDX-License-Identifier: Apache-2.0
"""Lanes of HTTP: C serves the plain requests of a connection for one image, or carries out one instruction."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import Error, InvalidRequest, OutOfRange, StorageError, TooManyDecoders, Truncated, Unavailable
from ..image import zstd
from ..runtime.sums import Count
from ..storage.completions import describe, kind_name, no_fault, syscall_name
from ..storage.packed import PackedDisk
from .lane import Lane, Terms, bits

#: Characters of a template that C replaces with a value.
FIRST, LAST, LENGTH, DATE, ORIGIN = map(
    chr, (lib.IOU_HTTP_FIRST, lib.IOU_HTTP_LAST, lib.IOU_HTTP_LENGTH, lib.IOU_HTTP_DATE, lib.IOU_HTTP_ORIGIN)
)

_FLAGS = {lib.IOU_FUA: "flush", lib.IOU_FAST_ONLY: "fast"}
_METHODS = {lib.IOU_READ: "GET", lib.IOU_WRITE: "PUT", lib.IOU_ZERO: "PATCH", lib.IOU_FLUSH: "PATCH"}


@dataclass(frozen=True)
class Instruction:
    """A request on which Python has decided. C moves its bytes, and answers it.

    `writes` is true for a PUT, false for a GET. The range of the image has `length` bytes from `offset`, or as many as
    come in chunks if `length` is None. The body of a PUT has `body` bytes as it is sent, or comes in chunks if `body`
    is None. With `encoded` it is a frame of zstd. With `flush`, the bytes are on stable storage before the
    answer. With `expects`, the client waits for 100 Continue. `status` is the status of the answer, and `answer`
    is the whole answer or its head, with DATE once. With `packed`, the range is one of this file, not of the image.
    """

    writes: bool
    offset: int
    length: int | None
    status: int
    answer: bytes
    body: int | None = 0
    encoded: bool = False
    flush: bool = False
    expects: bool = False
    packed: PackedDisk | None = None

    def fill(self, place: Any) -> object:
        """Fill an iou_instruction. Keep the returned object alive until C has copied the instruction."""
        text = ffi.from_buffer(self.answer)
        place.kind = lib.IOU_WRITE if self.writes else lib.IOU_READ
        place.flags = bits(
            {
                lib.IOU_INSTRUCTION_FLUSH: self.flush,
                lib.IOU_INSTRUCTION_EXPECTS: self.expects,
                lib.IOU_INSTRUCTION_CHUNKED: self.body is None,
                lib.IOU_INSTRUCTION_ENCODED: self.encoded,
                lib.IOU_INSTRUCTION_UNBOUNDED: self.length is None,
            }
        )
        place.offset, place.length, place.body = self.offset, self.length or 0, self.body or 0
        place.status, place.answer, place.answer_length = self.status, text, len(self.answer)
        return text


@dataclass(frozen=True)
class HttpTerms(Terms):
    """The path of the image, `target`, and templates of the answers to requests that succeed.

    `done` is an answer without data, and has DATE. `partial` is the head of an answer with a range of the image, and
    has FIRST, LAST, LENGTH and DATE, once each. `whole` is the head of an answer with all of the image, and has LENGTH
    and DATE. `generation` is the generation of the image for which `partial` and `whole` are valid, or 0 for any.
    `origin` has the lines that replace ORIGIN in each template if the request has an Origin field. With an
    `instruction`, the lane carries out only that. Without one it serves plain requests.
    """

    target: bytes
    done: bytes
    partial: bytes
    whole: bytes
    generation: int
    origin: bytes
    instruction: Instruction | None = None

    def start(self, lanes: Any, handle: Any, common: Any, result: Any) -> int:
        """Start the lane; return 0 or a negative errno."""
        options = ffi.new("iou_http_options *")
        options.lane = common
        options.generation = self.generation
        texts = {
            "target": self.target,
            "done": self.done,
            "partial": self.partial,
            "whole": self.whole,
            "origin": self.origin,
        }
        kept: list[object] = []  # keeps the memory alive until C has copied it
        if self.instruction is not None:
            kept.append(self.instruction.fill(options.instruction))
            if self.instruction.packed is not None:
                handle = self.instruction.packed.handle
        for name, text in texts.items():
            kept.append(ffi.from_buffer(text))
            setattr(options, name, kept[-1])
            setattr(options, f"{name}_length", len(text))
        return int(lib.iou_http_start(lanes, handle, options, result))


#: Allocates memory for the rest of the client's bytes, and does not clear it. The rest is mostly empty, and clearing
#: would take the most time.
_new_memory = ffi.new_allocator(should_clear_after_alloc=False)


class Asks(NamedTuple):
    """The wishes of a request for its answer.

    With `origin`, the answer has to allow pages of another origin to read it. With `json`, an error is a document, not
    a line of text.
    """

    origin: bool = False
    json: bool = False

    @classmethod
    def of(cls, said: Any) -> "Asks":
        """Make this of the flags that C has read in the head of a request."""
        return cls(said.asks & lib.IOU_ASKS_ORIGIN != 0, said.asks & lib.IOU_ASKS_JSON != 0)


_CHUNK_REFUSALS: dict[int, str] = {
    lib.IOU_CHUNKS_LINE: "a line is too long",
    lib.IOU_CHUNKS_LINE_END: "a line does not end with CRLF",
    lib.IOU_CHUNKS_SIZE: "its size is not a number",
    lib.IOU_CHUNKS_END: "it does not end where its size says",
    lib.IOU_CHUNKS_TRAILER: "its trailer is too long",
    lib.IOU_CHUNKS_FIELD: "its trailer has a line that is no field",
}


def refused_chunk(refusal: int) -> InvalidRequest:
    """Return the error of a body in chunks whose framing is refused, for an iou_chunks_refusal."""
    return InvalidRequest(f"Invalid chunk: {_CHUNK_REFUSALS[refusal]}")


#: The errors of lanes that have no memory, by errno.
_NO_MEMORY: dict[int, Callable[[], Error]] = {
    errno.ENOMEM: partial(Unavailable, "There is no memory for the request now"),
    errno.ENOBUFS: TooManyDecoders,
}


def _outside(end: Any) -> Error:
    wanted = f"{end.offset}..{end.offset + end.length}"
    return OutOfRange(f"Requested range {wanted} is outside of the image's {end.size} bytes", int(end.size))


#: The errors of invalid requests, by the reason of the lane's end.
_REFUSALS: dict[int, Callable[[Any], Error]] = {
    lib.IOU_HTTP_TRUNCATED: lambda _: Truncated("The request's body is shorter than announced"),
    lib.IOU_HTTP_ENCODING: lambda end: zstd.refused(end.refusal),
    lib.IOU_HTTP_CHUNKS: lambda end: refused_chunk(end.refusal),
    lib.IOU_HTTP_RANGE: _outside,
}


class HttpEnd(NamedTuple):
    """What comes back when a lane gives its connection back, or when there was none.

    `rest` has the bytes that were received and not used, and `served` counts the lane's requests and bytes. `other`
    tells that the next request is not for a lane. `error` is the error of a request that has failed and has no answer.
    Of this request, `asks` is what it asks of its answer, and `unread` the number of body bytes that the lane did not
    take. `chunks`, an iou_chunks, is the state of the reader if the body came in chunks. `cut` is the reason if the
    connection must be cut: it broke, or an answer had begun.
    """

    rest: bytes = b""
    served: Count = Count()
    other: bool = False
    error: Error | None = None
    asks: Asks = Asks()
    unread: int = 0
    chunks: Any = None
    cut: str | None = None


class HttpLane(Lane):
    """A connection whose plain HTTP requests C serves."""

    def cancel(self) -> None:
        """Cancel the request that runs. It ends at its next step, and the lane ends with it."""
        super().cancel()
        self.refuse()

    @staticmethod
    def describe(record: Any) -> dict[str, object]:
        """Return the fields of a request's log line. A failed request has no status, because Python answers it."""
        failed = {"error": errno.errorcode.get(record.error, "truncated")}
        return {
            "method": _METHODS[record.kind],
            "resource": "/images/{}",
            "offset": record.offset,
            "length": record.length,
            **{name: "y" for flag, name in _FLAGS.items() if record.flags & flag},
            **({"status": record.result} if record.result else failed),
        }

    @staticmethod
    def operation(record: Any) -> str:
        """Return the name of a request's operation."""
        return kind_name(record.kind)

    def end(self) -> HttpEnd:
        """Return why the lane has ended. Call it in the on_end callback of watch()."""
        end = ffi.new("iou_http_end *")
        rest = _new_memory("char[]", lib.IOU_LANE_MAX_STAGED)
        length = lib.iou_http_ended(self._lane, end, rest)
        error = self._error(end)
        if isinstance(error, StorageError):
            self._failed[kind_name(end.kind)] += 1
        return HttpEnd(
            rest=bytes(ffi.buffer(rest, length)),
            served=self.served(),
            # An idle lane has received a part of a head, which may never become complete. Python waits for the rest.
            other=end.reason == lib.IOU_HTTP_OTHER or (end.reason == lib.IOU_HTTP_IDLE and length > 0),
            error=error,
            asks=Asks.of(end),
            unread=end.unread,
            chunks=ffi.new("iou_chunks *", end.chunks),
            cut=self._reason_to_cut(end),
        )

    def _reason_to_cut(self, end: Any) -> str | None:
        if end.reason not in (lib.IOU_HTTP_CUT, lib.IOU_HTTP_BROKEN):
            return None
        if end.reason == lib.IOU_HTTP_CUT or self.stats.error == errno.ECANCELED:
            return "cut"
        return "inactivity" if self.stats.error == errno.ETIMEDOUT else "client"

    def _error(self, end: Any) -> Error | None:
        if end.reason in _REFUSALS:
            return _REFUSALS[end.reason](end)
        if not end.error or (end.reason == lib.IOU_HTTP_BROKEN and end.error == errno.ECANCELED):
            return None
        if end.error in _NO_MEMORY and end.syscall == lib.IOU_SYS_NONE:
            return _NO_MEMORY[end.error]()
        error = self._image.explain(end) or no_fault(end, end.flags)
        if error is not None:
            return error
        what = describe(end.kind, self._image.name, end.offset, end.length)
        return StorageError(end.error, what, syscall_name(end.syscall))
