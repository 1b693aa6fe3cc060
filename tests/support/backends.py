# SPDX-License-Identifier: Apache-2.0
"""Backends for tests: one in memory that keeps the contract, and a wrapper that fails or waits on demand."""

import asyncio
from collections.abc import Callable, Sequence

from imageio_daemon.errors import Canceled, NotFound, OutOfRange
from imageio_daemon.image.extents import Extent, ExtentList, ExtentStream, merged
from imageio_daemon.storage.backend import Backend, BackendInfo, Context
from imageio_daemon.storage.buffers import Slice
from imageio_daemon.storage.durable import DurableRecord
from imageio_daemon.storage.operation import Operation, ZeroMethod


class MemoryBackend(Backend):
    """An image in memory."""

    def __init__(self, content: bytes = b"", *, can_grow: bool = True) -> None:
        self.content = bytearray(content)
        self.can_grow = can_grow
        self.flushes = 0
        self.closed = False
        self.identity: object = None
        self.can_flush = True
        self.unflushed = True

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            size=len(self.content),
            block_size=1,
            can_grow=self.can_grow,
            can_fast_zero=True,
            identity=self.identity,
            can_flush=self.can_flush,
            unflushed=self.unflushed,
        )

    async def refresh(self, op: Operation) -> None:
        pass

    async def pread(self, op: Operation, piece: Slice, offset: int) -> None:
        self._check(op)
        if offset + len(piece) > len(self.content):
            raise OutOfRange("past the end", len(self.content))
        piece.view[:] = self.content[offset : offset + len(piece)]
        op.advance(len(piece))

    async def pwrite(self, op: Operation, piece: Slice, offset: int, *, fua: bool = False) -> None:
        self._check(op)
        self._grow(offset + len(piece))
        self.content[offset : offset + len(piece)] = piece.view
        op.advance(len(piece))

    async def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False
    ) -> ZeroMethod:
        self._check(op)
        self._grow(offset + length)
        self.content[offset : offset + length] = bytes(length)
        op.advance(length)
        return ZeroMethod.WRITE

    async def trim(self, op: Operation, offset: int, length: int) -> None:
        self._check(op)
        op.advance(length)

    async def flush(self, op: Operation) -> None:
        self._check(op)
        self.flushes += 1

    def bitmaps(self) -> Sequence[str]:
        raise NotFound("no bitmap")

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        if context is not Context.ZERO:
            raise NotFound("no bitmap")
        length = min(length, len(self.content) - offset)
        if length > 0:
            yield ExtentList.of([Extent(offset, length)], offset)

    def keep(self, record: DurableRecord) -> None:
        pass

    def interrupt(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True

    def _check(self, op: Operation) -> None:
        assert not self.closed, "used after close"
        if op.canceled:
            raise Canceled("cancelled")

    def _grow(self, end: int) -> None:
        if end > len(self.content):
            if not self.can_grow:
                raise OutOfRange("past the end", len(self.content))
            self.content.extend(bytes(end - len(self.content)))


class FaultyBackend:
    """Wrap a backend. Before each call of the named method `fault` runs, which may raise, or wait for an event."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._faults: dict[str, Callable[[], object]] = {}
        self.calls: list[str] = []

    def fail(self, method: str, error: Exception) -> None:
        """Make every call of the method raise."""

        def fault() -> None:
            raise error

        self._faults[method] = fault

    def mend(self, method: str) -> None:
        """Let calls of the method succeed again."""
        del self._faults[method]

    def hold(self, method: str) -> "Held":
        """Make calls of the method wait until released."""
        held = Held()
        self._faults[method] = held.wait
        return held

    def __getattr__(self, name: str) -> object:
        attribute = getattr(self._backend, name)
        if not callable(attribute) or name in ("extents", "interrupt"):
            return attribute

        async def call(*args: object, **kwargs: object) -> object:
            self.calls.append(name)
            fault = self._faults.get(name)
            if fault is not None:
                waiting = fault()
                if asyncio.iscoroutine(waiting):
                    await waiting
            return await attribute(*args, **kwargs)

        return call


class Held:
    """Calls that wait. `reached` is set when there is one, and `release()` lets them go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._released = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self._released.wait()

    def release(self) -> None:
        self._released.set()


async def extents_of(backend: Backend, offset: int, length: int, context: Context = Context.ZERO) -> list[Extent]:
    """Return the extents of a range of a backend."""
    return [extent async for found in merged(backend.extents(Operation(), offset, length, context)) for extent in found]
