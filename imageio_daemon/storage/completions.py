# SPDX-License-Identifier: Apache-2.0
"""Results of C's operations, translated for Python: names, errors, zeroing methods, extents and log lines."""

import errno
import logging
import os
from array import array
from collections import Counter
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import Canceled, Error, ImageInUse, NotFast, Shortened, StorageError
from ..image.extents import ExtentList
from .operation import ZeroMethod

log = logging.getLogger(__name__)

#: An operation that takes longer than this is logged.
SLOW_NS = lib.IOU_SLOW_SECONDS * 10**9

#: The zeroing methods by C's numbers.
METHODS: dict[int, ZeroMethod] = {getattr(lib, f"IOU_METHOD_{method.name}"): method for method in ZeroMethod}


# Names


def kind_name(kind: int) -> str:
    """Return the name of a kind of operation for the log."""
    return str(ffi.string(lib.iou_kind_name(kind)).decode())


_KINDS = {kind: kind_name(kind) for kind in range(lib.IOU_OPEN, lib.IOU_EXTENTS + 1)}
#: The names of all kinds of operations of C.
KINDS = tuple(_KINDS.values())


def syscall_name(number: int) -> str:
    """Return the name of a system call for the log."""
    return str(ffi.string(lib.iou_syscall_name(number)).decode())


def describe(kind: int, name: str, offset: int, length: int) -> str:
    """Return an operation in words for the log: its kind, the image and the range in bytes."""
    where = f" offset={offset} length={length}" if length else ""
    return f"{_KINDS[kind]} {name}{where}"


# Ends


def check(code: int, what: str) -> None:
    """Raise StorageError if a function of C has returned a negative errno. `what` is the action, for the message."""
    if code:
        raise StorageError(-code, what, "engine")


def no_fault(end: Any, flags: int) -> Error | None:
    """Return the error of an operation whose failure is no fault of the storage, or None if it is.

    `end` is C's, with error, syscall and size. `flags` are those of the operation.
    """
    if end.error == errno.ECANCELED:
        return Canceled()
    if end.error == errno.ENOTSUP and flags & lib.IOU_FAST_ONLY:
        return NotFast()
    if end.error == errno.ENODATA and end.syscall == lib.IOU_SYS_NONE:
        return Shortened(f"Requested range is outside of the image's {end.size} bytes", int(end.size))
    if end.error == errno.EBUSY and end.syscall == lib.IOU_SYS_LOCK:
        return ImageInUse()
    if end.error == errno.EBUSY and end.syscall == lib.IOU_SYS_OPEN:
        return ImageInUse("the device is mounted, or part of another device")
    return None


#: How often each message was logged.
_told: Counter[str] = Counter()


def slow_operations() -> int:
    """Return how many operations of C took longer than SLOW_NS so far, on all images."""
    return _told["slow"]


def tell(what: str, name: str, elapsed: int, given_up: Any) -> None:
    """Log an operation that was slow, in ns, and methods that the storage refused, also if the operation succeeded."""
    if elapsed > SLOW_NS:
        _told["slow"] += 1
        log.warning("slow storage: %s took %.1f s", what, elapsed / 1e9)
    for syscall, code in enumerate(given_up, lib.IOU_SYS_PUNCH_HOLE):
        if code:
            log.info("no %s on %s: %s", syscall_name(syscall), name, os.strerror(code))


# Extents

_RECORDS = ffi.typeof("iou_extent[]")
RECORD_SIZE = ffi.sizeof("iou_extent")
#: This does not zero the records: C fills those that are read.
_new_records = ffi.new_allocator(should_clear_after_alloc=False)


def new_records(most: int) -> Any:
    """Return memory for `most` extents, each of RECORD_SIZE bytes."""
    return _new_records(_RECORDS, most)


def extent_list(records: Any, count: int, offset: int) -> ExtentList:
    """Return C's records of the range from offset on as a list, without a step of Python for each extent."""
    numbers = memoryview(ffi.buffer(records, count * RECORD_SIZE)).cast("Q")
    bounds = array("Q", [offset])
    bounds.frombytes(numbers[::2].tobytes())
    return ExtentList(bounds, bytes(numbers[1::2].tolist()))  # C's flags are ours
