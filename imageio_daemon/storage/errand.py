# SPDX-License-Identifier: Apache-2.0
"""One operation that a lane asks of an image that Python has."""

import asyncio
import errno
from typing import Any, Protocol

from ioutil_ext import ffi, lib

from ..errors import Error, Forbidden, NotFast, OutOfRange, StorageError, Unavailable
from .backend import Operation
from .work import Work

#: The largest number that the kernel uses for an error.
MAX_ERRNO = 4095


class ErrandOwner(Protocol):
    """Whoever took the errand from C."""

    def errand_failed(self, errand: "Errand", error: BaseException) -> tuple[int, int]:
        """Keep why it failed; return what C is told: errno and system call."""
        ...

    def errand_ended(self, errand: "Errand") -> None:
        """Tell C: nobody uses the memory any more."""
        ...


class Errand:
    """An operation that C has asked for, and C's memory for it, which is counted like a buffer.

    owner: whom its failure and its end are told. told: the errand as C tells it. Not thread-safe: lives on the loop of
    the image's backend.
    """

    __slots__ = ("_holders", "_owner", "count", "error", "flags", "id", "kind", "lane", "method", "op", "views")

    def __init__(self, owner: ErrandOwner, told: Any) -> None:
        self._owner = owner
        self._holders = 1  # the operation
        self.id: int = told.id
        self.kind: int = told.kind
        self.flags: int = told.flags
        self.lane = address_of(told.control)
        #: C's memory, in parts.
        self.views = [
            memoryview(ffi.buffer(address, length))
            for address, length in zip(told.memory, told.memory_length, strict=True)
            if length
        ]
        self.op = Operation(told.offset, told.length, lambda _: self.release())
        #: What C is told: errno and system call, how a range was zeroed, how many records were filled.
        self.error = (0, lib.IOU_SYS_NONE)
        self.method: int = lib.IOU_METHOD_NONE
        self.count = 0

    def __len__(self) -> int:
        return sum(map(len, self.views))

    @property
    def view(self) -> memoryview:
        """Return the memory, if it is one part."""
        (view,) = self.views
        return view

    @property
    def address(self) -> Any:
        """Return the same for C."""
        return ffi.cast("char *", ffi.from_buffer(self.view))

    @property
    def buffer(self) -> "Errand":
        """Return whom to retain."""
        return self

    def retain(self) -> None:
        """Keep the memory until one more release()."""
        self._holders += 1

    def release(self) -> None:
        """Let go. The last one gives the memory back to C."""
        self._holders -= 1
        if self._holders == 0:
            self._owner.errand_ended(self)

    def failed(self, error: BaseException) -> None:
        """Note why it failed."""
        self.error = self._owner.errand_failed(self, error)

    def done(self, future: "asyncio.Future[Any] | Work[Any]") -> None:
        """Note what became of it.

        Tasks are cancelled when their loop ends, by nobody else. Then a transport may still send from the memory, and
        this errand never ends: better a thread that waits, in a process that ends, than other bytes in the image.
        """
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.failed(error)
        elif self.kind == lib.IOU_EXTENTS:
            self.count = future.result()
        elif self.kind == lib.IOU_ZERO:
            self.method = lib.IOU_METHOD_REMOTE
        self.op.release()


def address_of(control: Any) -> int:
    """Return what tells the lanes of one process apart."""
    return int(ffi.cast("uintptr_t", control))


def code_of(error: Error) -> tuple[int, int]:
    """Return what C is told of an error, so that it means the same there: errno and system call.

    no_fault() in completions.py reads the same codes. HTTP lanes raise the error itself, as External.take_failure() has
    it; NBD lanes answer by the code, from the table in frontends/nbd/errors.py.
    """
    if isinstance(error, Forbidden | Unavailable):
        return errno.ECANCELED, lib.IOU_SYS_NONE
    if isinstance(error, NotFast):
        return errno.ENOTSUP, lib.IOU_SYS_NONE
    if isinstance(error, OutOfRange):
        return errno.ENODATA, lib.IOU_SYS_NONE
    number = error.errno if isinstance(error, StorageError) else errno.EIO
    known = 0 < number <= MAX_ERRNO and number != errno.ECANCELED
    return number if known else errno.EIO, lib.IOU_SYS_EXTERNAL
