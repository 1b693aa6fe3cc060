# SPDX-License-Identifier: Apache-2.0
"""Backends for tests: one in memory that keeps the contract, and one that breaks any other on demand."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from imageio_daemon.errors import Canceled, NotFound, OutOfRange
from imageio_daemon.image.extents import Extent, ExtentList, ExtentStream, merged
from imageio_daemon.storage.backend import Backend, BackendInfo, Context, Memory, Operation, ZeroMethod
from imageio_daemon.storage.buffers import MAX_BUFFER
from imageio_daemon.storage.durable import DurableRecord
from imageio_daemon.storage.external import External, RemoteImage
from imageio_daemon.storage.home_loop import HomeLoop
from imageio_daemon.storage.http.backend import PIECES


class MemoryBackend:
    """An image in memory."""

    def __init__(self, content: bytes = b"", *, can_grow: bool = True) -> None:
        self.content = bytearray(content)
        self.can_grow = can_grow
        self.flushes = 0
        self.closed = False
        self.identity: object = None
        self.can_flush = True
        self.unflushed = True
        self.write_piece = MAX_BUFFER
        self.writes = 1

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            size=len(self.content),
            block_size=1,
            can_grow=self.can_grow,
            can_fast_zero=True,
            has_dirty=False,
            write_piece=self.write_piece,
            writes=self.writes,
            identity=self.identity,
            can_flush=self.can_flush,
            unflushed=self.unflushed,
        )

    @property
    def generation(self) -> int:
        return 0

    async def refresh(self, op: Operation) -> None:
        pass

    async def available(self, op: Operation) -> int | None:
        return None

    async def reads_zero(self, op: Operation) -> bool:
        return False

    async def pread(self, op: Operation, piece: Memory, offset: int) -> None:
        self._check(op)
        if offset + len(piece) > len(self.content):
            raise OutOfRange("past the end", len(self.content))
        piece.view[:] = self.content[offset : offset + len(piece)]
        op.advance(len(piece))

    async def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> None:
        self._check(op)
        self._grow(offset + len(piece))
        self.content[offset : offset + len(piece)] = piece.view
        op.advance(len(piece))

    async def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False, fua: bool = False
    ) -> ZeroMethod:
        self._check(op)
        self._grow(offset + length)
        self.content[offset : offset + length] = bytes(length)
        op.advance(length)
        self.flushes += fua
        return ZeroMethod.WRITE

    async def trim(self, op: Operation, offset: int, length: int) -> None:
        self._check(op)
        op.advance(length)

    async def flush(self, op: Operation) -> None:
        self._check(op)
        self.flushes += 1

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        if context is not Context.ZERO:
            raise NotFound("no bitmap")
        length = min(length, len(self.content) - offset)
        if length > 0:
            yield ExtentList.of([Extent(offset, length)], offset)

    async def extent_at(self, op: Operation, offset: int, length: int) -> ExtentList:
        async for found in self.extents(op, offset, length, Context.ZERO):
            return found
        return ExtentList.of((), offset)

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


class SlowBackend(MemoryBackend):
    """An image in memory whose writes go on until the test ends them. It keeps their buffers, whoever awaits."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._home_loop = HomeLoop()
        #: What began, in order: where, and what the test ends it with.
        self.begun: list[tuple[range, asyncio.Future[None]]] = []

    async def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.append((range(offset, offset + len(piece)), end))
        await self._home_loop.run(self._write(op, piece, offset, end), op, piece.buffer)

    async def _write(self, op: Operation, piece: Memory, offset: int, end: "asyncio.Future[None]") -> None:
        await end
        await super().pwrite(op, piece, offset)

    def finish(self) -> None:
        """End all that goes on."""
        for _, end in self.begun:
            if not end.done():
                end.set_result(None)


class FaultyBackend:
    """Wrap a backend: before a call of the named method, `fault` runs: it may raise, or wait for an event."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._faults: dict[str, Callable[[], object]] = {}
        self.calls: list[str] = []

    def fail(self, method: str, error: Exception) -> None:
        """Make every call of the method raise."""

        def fault() -> None:
            raise error

        self._faults[method] = fault

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


class ExternalBackend(RemoteImage, FaultyBackend):
    """Wrap a backend for lanes, too, which ask for everything on the loop that has opened it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.interrupts = 0
        size = backend.info.size
        self._external = External(cast(Backend, self), "memory", "memory", PIECES, size=size, grows=True)

    def keep(self, record: DurableRecord) -> None:
        self._backend.keep(record)

    def interrupt(self) -> None:
        self.interrupts += 1
        self._backend.interrupt()

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if name not in ("pwrite", "zero"):
            return found

        async def change(*args: object, **kwargs: object) -> object:
            result = await cast(Any, found)(*args, **kwargs)
            self._external.resized(self._backend.info.size)
            return result

        return change

    async def close(self) -> None:
        await self._external.close()
        await self._backend.close()


class Held:
    """Calls that wait: `reached` is set when one does, `release()` lets them go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._released = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self._released.wait()

    def release(self) -> None:
        self._released.set()


async def extents_of(backend: Backend, offset: int, length: int, context: Context = Context.ZERO) -> list[Extent]:
    """Return what a backend tells of a range."""
    return [extent async for found in merged(backend.extents(Operation(), offset, length, context)) for extent in found]
