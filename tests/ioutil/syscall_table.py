# SPDX-License-Identifier: Apache-2.0
"""Replace the system calls of the C code by Python functions, for the time of a test.

A replacement gets plain integers and memoryviews, and fails by raising OSError, as the functions of os do.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ioutil_ext import ffi, lib
from tests.support import syscalls

Replacement = Callable[..., Any]


def real_open(path: str, flags: int) -> int:
    return os.open(path, flags)


def real_pread(fd: int, buffer: memoryview, offset: int) -> int:
    return os.preadv(fd, [buffer], offset)


def real_pwrite(fd: int, buffer: memoryview, offset: int) -> int:
    return os.pwrite(fd, buffer, offset)


def real_size(fd: int) -> int:
    if stat.S_ISBLK(os.fstat(fd).st_mode):
        return os.lseek(fd, 0, os.SEEK_END)
    return os.fstat(fd).st_size


real_fallocate = syscalls.fallocate
real_ftruncate = os.ftruncate
real_fdatasync = os.fdatasync
real_lseek = os.lseek
real_close = os.close


@contextmanager
def replaced(**replacements: Replacement) -> Iterator[None]:
    """Replace the named members of iou_syscalls; no operation may run at the begin and at the end.

    What a replacement raises, other than OSError, is raised here at the end: an assertion in one fails the test.
    """
    broken: list[BaseException] = []
    table = ffi.new("iou_syscalls *")
    types = {name: member.type for name, member in ffi.typeof("iou_syscalls").fields}
    callbacks = []  # C holds no reference
    for name, function in replacements.items():
        callback = ffi.callback(types[name], _adapted(name, function, broken))
        callbacks.append(callback)
        setattr(table, name, callback)
    lib.iou_set_syscalls(table)
    try:
        yield
    finally:
        lib.iou_set_syscalls(ffi.NULL)
        if broken:
            raise broken[0]


def _adapted(name: str, function: Replacement, broken: list[BaseException]) -> Replacement:
    """Turn C's arguments into Python's, and exceptions into errno."""

    def call(*arguments: Any) -> int:
        try:
            return _call(name, function, arguments)
        except OSError as error:
            ffi.errno = error.errno
        except BaseException as error:  # noqa: BLE001 - raised again by replaced(), C can't carry it
            broken.append(error)
            ffi.errno = errno.EIO
        return -1

    return call


def _call(name: str, function: Replacement, arguments: tuple[Any, ...]) -> int:
    if name in ("pread", "pwrite"):
        fd, buffer, length, offset = arguments
        return int(function(fd, memoryview(ffi.buffer(buffer, length)), offset))
    if name in ("size", "space"):
        fd, result = arguments
        result[0] = function(fd)
        return 0
    if name == "open":
        path, flags = arguments
        return int(function(ffi.string(path).decode(), flags))
    result = function(*arguments)
    return 0 if result is None else int(result)
