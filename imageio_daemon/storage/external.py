# SPDX-License-Identifier: Apache-2.0
"""External images: a backend in Python serves operations of lanes, on the loop of the backend (ADR 18)."""

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import Canceled, Error, NotFound, StorageError
from ..image.extents import Extent, ExtentList
from .backend import Backend, Context, Operation
from .completions import RECORD_SIZE, check, describe, fill_records
from .errand import Errand, address_of, code_of
from .home_loop import HomeLoop
from .work import Work

log = logging.getLogger(__name__)

#: Most errands that one call of C returns.
BATCH = 64
#: The bit that tells the device numbers of servers from those of the kernel, which never have it.
_NO_DEVICE = 1 << 63


class Pieces(NamedTuple):
    """How C cuts a long request of a lane into pieces.

    size: bytes of a piece; ahead: pieces under way at a time. Pieces end at multiples of their size, which is a power
    of two from 64 KiB to 2 MiB. For requests that Python serves, BackendInfo.write_piece and BackendInfo.writes have
    these numbers for writes, and the number of buffers for reads.
    """

    size: int
    ahead: int


class External:
    """Serve the operations of lanes on a backend. Made and closed on its home loop; other methods are thread-safe.

    Each errand of C is an operation of the backend, with memory of C. A thread of the lane waits for it. The errand
    ends when neither the backend nor a transport uses the memory any more.

    name: of the image, for logs, without secrets. server: identifies the server that has the image. Images of one
    server share threads and memory of lanes, as images of one device do. size: of the image, in bytes; see resized().
    grows: a write past the end may make the image larger. home_loop: starts errands in one order with the work of other
    loops. Raises StorageError if no descriptor or memory is left.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        server: object,
        pieces: Pieces,
        *,
        size: int = 0,
        grows: bool = False,
        home_loop: HomeLoop | None = None,
    ) -> None:
        self.name = name
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._closed = self._freed = False
        self._errands: dict[int, Errand] = {}
        self._batch = ffi.new("iou_errand[]", BATCH)
        self._completion = ffi.new("iou_completion *")
        #: Errors of errands, by the address of the lane's control: for each lane the first since take_failure(). One is
        #: enough: an HTTP lane serves one request at a time, and the error of an NBD lane is only logged.
        self._failures: dict[int, Error] = {}
        self._drained: asyncio.Future[None] | None = None
        result = ffi.new("iou_handle **")
        options, _kept = _options(name, server, pieces, size, grows=grows)
        check(lib.iou_external_new(options, result), f"prepare {name} for lanes")
        self._handle = result[0]
        self._home_loop = home_loop or HomeLoop()
        self._home_loop.add_lanes(self._take)
        self._loop.add_reader(lib.iou_external_fd(self._handle), self._look)

    @contextmanager
    def lane_handle(self) -> Iterator[Any]:
        """Keep C's handle of the image open for the block. Raises Canceled if the image was closed."""
        with self._lock:
            if self._closed:
                raise Canceled("The image was closed")
            yield self._handle

    def resized(self, size: int) -> None:
        """Set the size of the image, in bytes, after it has changed."""
        with self._lock:
            if not self._closed:
                lib.iou_external_resize(self._handle, size)

    def take_failure(self, control: Any) -> Error | None:
        """Return and forget the error of an errand of the lane with this control; None if no errand failed."""
        return self._failures.pop(address_of(control), None)

    async def close(self) -> None:
        """Cancel all errands, refuse new ones, wait until none is left, and release the handle.

        Later calls do nothing. Raises StorageError in a forked child, where errands of the parent never end.
        """
        with self._lock:
            if self._closed:
                return  # C may have freed the handle
            self._closed = True
        while left := lib.iou_external_close(self._handle):
            if left < 0:
                check(left, f"close {self.name} for lanes")
            for errand in list(self._errands.values()):  # a copy: other threads add to it
                errand.op.cancel()
            self._backend.interrupt()
            self._drained = self._loop.create_future()
            await self._drained
        self._loop.remove_reader(lib.iou_external_fd(self._handle))
        with self._lock:
            self._freed = True
        check(lib.iou_external_free(self._handle), "let go of an image")

    # Errands

    def _look(self) -> None:
        self._home_loop.begin_arrived()

    def _take(self) -> list[Callable[[], None]]:
        """Take all errands from C. Return functions that start them, in order, on the home loop. Thread-safe."""
        taken: list[Callable[[], None]] = []
        count = BATCH
        with self._lock:
            while count == BATCH and not self._freed:
                count = lib.iou_external_take(self._handle, self._batch, BATCH)
                taken += [self._taken(self._batch[i]) for i in range(count)]
        return taken

    def _taken(self, told: Any) -> Callable[[], None]:
        if not told.kind:
            return partial(self._cancel, told.id)
        errand = self._errands[told.id] = Errand(self, told)
        return partial(self._start, errand)

    def _cancel(self, number: int) -> None:
        errand = self._errands.get(number)  # None: it has ended meanwhile
        if errand is not None:
            errand.op.cancel()
            self._backend.interrupt()

    def _start(self, errand: "Errand") -> None:
        try:
            work = self._run(errand)
        except Exception as e:  # noqa: BLE001 - a thread of C waits for the errand; errand_failed() logs a bug
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
            trim = backend.trim(op, op.offset, op.length)  # not in the task, which would start after later changes
            return self._flushed(trim, op) if fua else trim
        return self._extents(op, errand)

    async def _flushed(self, change: Awaitable[object], op: Operation) -> None:
        await change
        await self._backend.flush(op)

    async def _extents(self, op: Operation, errand: "Errand") -> int:
        """Fill the memory with records of extents; return how many."""
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
        except NotFound:  # the image does not have the context: report all as data
            return ExtentList.of((Extent(op.offset, op.length),), op.offset)
        return found

    # Called by errands; see ErrandOwner

    def errand_failed(self, errand: "Errand", error: BaseException) -> tuple[int, int]:
        """Keep the error of an errand, for take_failure(). Return errno and system call for C."""
        if not isinstance(error, Error):
            what = describe(errand.kind, self.name, errand.op.offset, errand.op.length)
            log.error("%s failed", what, exc_info=error)
            error = StorageError(errno.EIO, what, "a bug")
        self._failures.setdefault(errand.lane, error.with_traceback(None))
        return code_of(error)

    def errand_ended(self, errand: "Errand") -> None:
        """End an errand in C. Python does not use its memory any more."""
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
    """The methods of LaneImage, for a backend that makes an External when it has opened its image."""

    _external: External

    @property
    def name(self) -> str:
        """Return the name of the image for logs."""
        return self._external.name

    async def available(self, op: Operation) -> int | None:
        """Return None: the server of the image does not tell."""
        op.require_running()
        return None

    async def reads_zero(self, op: Operation) -> bool:
        """Return False: it is not known."""
        op.require_running()
        return False

    def lane_handle(self) -> AbstractContextManager[Any]:
        """Keep C's handle of the image open for a block; see External."""
        return self._external.lane_handle()

    def take_failure(self, control: Any) -> Error | None:
        """Return and forget the error of an errand of the lane with this control; see External."""
        return self._external.take_failure(control)


def _options(name: str, server: object, pieces: Pieces, size: int, *, grows: bool) -> tuple[Any, Any]:
    """Return the options, and the memory to which they point, which must live as long as they do."""
    options = ffi.new("iou_external_options *")
    options.name = kept = ffi.new("char[]", name.encode(errors="replace"))
    options.device = _NO_DEVICE | hash(server) % _NO_DEVICE
    options.size = size
    options.grows = grows
    options.piece, options.ahead = pieces
    return options, kept
