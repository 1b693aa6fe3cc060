# SPDX-License-Identifier: Apache-2.0
"""An errand: one operation of a lane on an external image, which a backend in Python serves (ADR 18)."""

import asyncio
import errno
from typing import Any, Protocol

from ioutil_ext import ffi, lib

from ..errors import Error, Forbidden, NotFast, OutOfRange, StorageError, Unavailable
from .backend import Operation
from .work import Work

#: The largest errno of the kernel (include/linux/err.h).
MAX_ERRNO = 4095


class ErrandOwner(Protocol):
    """The object that takes errands from C and ends them: an External."""

    def errand_failed(self, errand: "Errand", error: BaseException) -> tuple[int, int]:
        """Keep the error of an errand. Return errno and system call for C."""
        ...

    def errand_ended(self, errand: "Errand") -> None:
        """End an errand in C. Python does not use its memory any more."""
        ...


class Errand:
    """An operation that a thread of a lane waits for, with the memory of the lane. It counts holders like a buffer.

    owner: is called after a failure and at the end. told: an iou_errand of C (ioutil_ext/api/external.h). Not
    thread-safe: used on the home loop of the backend.
    """

    __slots__ = ("_holders", "_owner", "count", "error", "flags", "id", "kind", "lane", "method", "op", "view")

    def __init__(self, owner: ErrandOwner, told: Any) -> None:
        self._owner = owner
        self._holders = 1  # the operation
        self.id: int = told.id
        self.kind: int = told.kind
        self.flags: int = told.flags
        self.lane = address_of(told.control)
        #: The memory of the lane.
        self.view = memoryview(ffi.buffer(told.memory, told.memory_length))
        self.op = Operation(told.offset, told.length, lambda _: self.release())
        #: The result for C: errno and system call, the method of zeroing, the number of extents in the memory.
        self.error = (0, lib.IOU_SYS_NONE)
        self.method: int = lib.IOU_METHOD_NONE
        self.count = 0

    def __len__(self) -> int:
        return len(self.view)

    @property
    def address(self) -> Any:
        """Return the address of the memory for C."""
        return ffi.cast("char *", ffi.from_buffer(self.view))

    @property
    def buffer(self) -> "Errand":
        """Return the holder to retain while the memory is used: the errand itself."""
        return self

    def retain(self) -> None:
        """Keep the memory until one more release()."""
        self._holders += 1

    def release(self) -> None:
        """Release one count. The last release() ends the errand, and C has its memory again."""
        self._holders -= 1
        if self._holders == 0:
            self._owner.errand_ended(self)

    def failed(self, error: BaseException) -> None:
        """Set the error that C gets."""
        self.error = self._owner.errand_failed(self, error)

    def done(self, future: "asyncio.Future[Any] | Work[Any]") -> None:
        """Set the result of the operation, as the callback of its task or Work, and release the operation.

        Tasks are cancelled only when their loop ends. A transport may then still send from the memory. So the errand
        does not end, and the lane's thread waits until the process ends: otherwise other bytes could reach the image.
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
    """Return the address of a lane's iou_control, which identifies the lane in this process."""
    return int(ffi.cast("uintptr_t", control))


def code_of(error: Error) -> tuple[int, int]:
    """Return the errno and the system call that stand for an error in C.

    no_fault() in completions.py is the inverse. An HTTP request is answered with the error itself, which
    External.take_failure() returns. An NBD request is answered by errno, with the table in frontends/nbd/errors.py.
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
