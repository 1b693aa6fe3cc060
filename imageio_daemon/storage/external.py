# SPDX-License-Identifier: Apache-2.0
"""Images that Python has, for lanes: what C asks for is done on the loop where the image's backend lives (ADR 18)."""

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import Canceled, Error, NotFound, StorageError
from ..image.extents import Extent, ExtentList
from .backend import Backend, Context, Operation
from .completions import RECORD_SIZE, check, describe, fill_records
from .errand import Errand, address_of, code_of
from .work import Work

log = logging.getLogger(__name__)

#: Errands that are taken at once; the others have the loop's next turn.
BATCH = 64
#: Bit of the numbers that devices of servers have, which no device of the kernel has.
_NO_DEVICE = 1 << 63


class Pieces(NamedTuple):
    """How a long request is cut: bytes of a piece, the same beside other requests, and pieces under way at a time.

    Pieces end at multiples of their size, a power of two of at most 4 MiB. For the requests that Python serves,
    BackendInfo.write_piece and writes say the same of writes, and the number of buffers of reads.
    """

    size: int
    beside_others: int
    ahead: int


class External:
    """Do what lanes ask of a backend, on the running loop; made and closed there. The rest is thread-safe.

    Each errand of C is an operation of the backend with C's memory. It ends for C, whose thread waits, when nobody uses
    that memory any more: neither the backend nor a transport that it was given to.

    name: the image's, for logs, without secrets. server: who has it; images of one server share what lanes have, as
    those of a device do. size: of the image, in bytes; see resized(). grows: a write past its end may make it larger.
    Raises StorageError: no descriptor is left.
    """

    def __init__(
        self, backend: Backend, name: str, server: object, pieces: Pieces, *, size: int = 0, grows: bool = False
    ) -> None:
        self.name = name
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._errands: dict[int, Errand] = {}
        self._batch = ffi.new("iou_errand[]", BATCH)
        self._completion = ffi.new("iou_completion *")
        #: By the control of the lane, why an errand of it failed: one failure for each lane, the first since somebody
        #: asked. That is enough: an HTTP lane serves one request at a time, and of an NBD lane it is only logged.
        self._failures: dict[int, Error] = {}
        self._drained: asyncio.Future[None] | None = None
        result = ffi.new("iou_handle **")
        options, _kept = _options(name, server, pieces, size, grows=grows)
        check(lib.iou_external_new(options, result), f"prepare {name} for lanes")
        self._handle = result[0]
        self._loop.add_reader(lib.iou_external_fd(self._handle), self._look)

    @contextmanager
    def lane_handle(self) -> Iterator[Any]:
        """Keep C's handle of the image open for the block. Raises Canceled when the image was closed."""
        with self._lock:
            if self._closed:
                raise Canceled("The image was closed")
            yield self._handle

    def resized(self, size: int) -> None:
        """Note how large the image is now."""
        with self._lock:
            if not self._closed:
                lib.iou_external_resize(self._handle, size)

    def take_failure(self, control: Any) -> Error | None:
        """Return why an errand of the lane with this control failed, once; None: none did."""
        return self._failures.pop(address_of(control), None)

    async def close(self) -> None:
        """Refuse errands; returns when none is left, and the handle is C's only. Again is no change.

        Raises StorageError in a forked child, where errands of the parent never end.
        """
        with self._lock:
            if self._closed:
                return  # C may have freed it
            self._closed = True
        while left := lib.iou_external_close(self._handle):
            if left < 0:
                check(left, f"close {self.name} for lanes")
            for errand in self._errands.values():
                errand.op.cancel()
            self._backend.interrupt()
            self._drained = self._loop.create_future()
            await self._drained
        self._loop.remove_reader(lib.iou_external_fd(self._handle))
        check(lib.iou_external_free(self._handle), "let go of an image")

    # Errands

    def _look(self) -> None:
        count = lib.iou_external_take(self._handle, self._batch, BATCH)
        interrupts = False
        for i in range(count):
            told = self._batch[i]
            if told.kind:
                self._start(told)
            else:
                self._errands[told.id].op.cancel()
                interrupts = True
        if interrupts:
            self._backend.interrupt()

    def _start(self, told: Any) -> None:
        errand = Errand(self, told)
        self._errands[errand.id] = errand
        try:
            work = self._run(errand)
        except Exception as e:  # noqa: BLE001 - a thread waits, and is told; a bug is logged by who tells it
            errand.failed(e)
            errand.op.release()
            return
        ended = work if isinstance(work, Work) else asyncio.ensure_future(work)
        ended.add_done_callback(errand.done)

    def _run(self, errand: "Errand") -> Awaitable[object]:
        backend, op, kind, flags = self._backend, errand.op, errand.kind, errand.flags
        fua = bool(flags & lib.IOU_FUA)
        if kind == lib.IOU_READ:
            return backend.pread(op, errand, op.offset)
        if kind == lib.IOU_WRITE:
            return backend.pwrite(op, errand, op.offset, fua=fua)
        if kind == lib.IOU_ZERO:
            allocate, fast = bool(flags & lib.IOU_ALLOCATE), bool(flags & lib.IOU_FAST_ONLY)
            return backend.zero(op, op.offset, op.length, allocate=allocate, fast_only=fast, fua=fua)
        if kind == lib.IOU_FLUSH:
            return backend.flush(op)
        if kind == lib.IOU_TRIM:
            trim = backend.trim(op, op.offset, op.length)  # in this call: a task starts after later changes
            return self._flushed(trim, op) if fua else trim
        return self._extents(op, errand)

    async def _flushed(self, change: Awaitable[object], op: Operation) -> None:
        await change
        await self._backend.flush(op)

    async def _extents(self, op: Operation, errand: "Errand") -> int:
        """Fill the memory with records; return how many."""
        most = len(errand) // RECORD_SIZE
        if most == 1:
            found = await self._backend.extent_at(op, op.offset, op.length)
        else:
            found = await self._all_extents(op, most)
        return fill_records(errand.view, found, most)

    async def _all_extents(self, op: Operation, most: int) -> ExtentList:
        found = ExtentList.of((), op.offset)
        try:
            async with aclosing(self._backend.extents(op, op.offset, op.length, Context.ZERO)) as lists:
                async for more in lists:
                    found.extend(more)
                    if len(found) >= most:
                        break
        except NotFound:  # nobody knows: data
            return ExtentList.of((Extent(op.offset, op.length),), op.offset)
        return found

    # For errands; see ErrandOwner

    def errand_failed(self, errand: "Errand", error: BaseException) -> tuple[int, int]:
        """Keep why an errand failed, for its lane; return what C is told: errno and system call."""
        if not isinstance(error, Error):
            what = describe(errand.kind, self.name, errand.op.offset, errand.op.length)
            log.error("%s failed", what, exc_info=error)
            error = StorageError(errno.EIO, what, "a bug")
        self._failures.setdefault(errand.lane, error.with_traceback(None))
        return code_of(error)

    def errand_ended(self, errand: "Errand") -> None:
        """Tell C: nobody uses the memory any more."""
        completion = self._completion
        completion.cookie = errand.id
        completion.done = min(errand.op.done, errand.op.length)
        completion.error, completion.syscall = errand.error
        completion.method = errand.method
        completion.count = errand.count
        del self._errands[errand.id]
        check(lib.iou_external_end(self._handle, completion), "end an operation of a lane")
        if not self._errands and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


class RemoteImage:
    """What lanes need of a backend that uses an External, which it makes when it is open."""

    _external: External

    @property
    def name(self) -> str:
        """Return what the image is called in logs."""
        return self._external.name

    def lane_handle(self) -> AbstractContextManager[Any]:
        """Keep C's handle of the image open for a block; see External."""
        return self._external.lane_handle()

    def take_failure(self, control: Any) -> Error | None:
        """Return why something that the lane with this control asked for failed; see External."""
        return self._external.take_failure(control)


def _options(name: str, server: object, pieces: Pieces, size: int, *, grows: bool) -> tuple[Any, Any]:
    """Return the options, and what must live as long as they are used."""
    options = ffi.new("iou_external_options *")
    options.name = kept = ffi.new("char[]", name.encode(errors="replace"))
    options.device = _NO_DEVICE | hash(server) % _NO_DEVICE
    options.size = size
    options.grows = grows
    options.piece, options.other_piece, options.ahead = pieces
    return options, kept
