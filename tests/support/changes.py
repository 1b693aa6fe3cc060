# SPDX-License-Identifier: Apache-2.0
"""Changes of images that only lanes make in the daemon, for the backends of all kinds of storage."""

from collections.abc import Awaitable
from typing import Any

from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.buffers import Slice
from imageio_daemon.storage.operation import Operation
from ioutil_ext import lib
from tests.support.backends import MemoryBackend


def pwrite(backend: Backend, op: Operation, piece: Slice, offset: int, *, fua: bool = False) -> Awaitable[object]:
    """Write the piece at offset. With `fua`, it is on stable storage when the awaitable is done."""
    if isinstance(backend, MemoryBackend):
        return backend.pwrite(op, piece, offset, fua=fua)
    length = len(piece)
    return _submit(
        backend,
        lib.IOU_WRITE,
        op,
        flags=lib.IOU_FUA if fua else 0,
        offset=offset,
        length=length,
        memory=piece.address,
        memory_size=length,
        holders=(op, piece.buffer),
    )


def zero(
    backend: Backend, op: Operation, offset: int, length: int, *, allocate: bool, fua: bool, fast_only: bool = False
) -> Awaitable[object]:
    """Make the range of an image that C has open read as zeros. With `fua`, they are on stable storage afterwards."""
    flags = (lib.IOU_ALLOCATE if allocate else 0) | (lib.IOU_FUA if fua else 0)
    flags |= lib.IOU_FAST_ONLY if fast_only else 0
    return _submit(backend, lib.IOU_ZERO, op, flags=flags, offset=offset, length=length, holders=(op,))


def trim(backend: Backend, op: Operation, offset: int, length: int) -> Awaitable[object]:
    """Free whole blocks inside the range where the storage can. Their content is undefined afterwards."""
    if isinstance(backend, MemoryBackend):
        return backend.trim(op, offset, length)
    return _submit(backend, lib.IOU_TRIM, op, offset=offset, length=length, holders=(op,))


def _submit(backend: Backend, kind: int, op: Operation, **what: Any) -> Awaitable[object]:
    with backend.lane_handle() as handle:
        return backend._engine.submit(
            kind, handle, control=op.control, name=backend.name, explain=backend.explain, **what
        )
