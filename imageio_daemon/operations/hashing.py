# SPDX-License-Identifier: Apache-2.0
"""Hash blocks of an image: read pieces of the blocks into a buffer, and hash the pieces in separate threads."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from ..image.blockhash import DataBlock, Pieces
from ..image.digests import Piece, new_digests
from ..runtime.background import NoThread, settle
from ..storage.backend import Backend
from ..storage.buffers import Buffer, Slice
from ..storage.operation import Operation
from ..units import KiB, MiB

#: Most threads by default. More would take processor time from transfers.
MOST_BY_DEFAULT = 4
#: Pieces of up to this many bytes are hashed on the loop: 16 us at 1 GB/s, which is less than the start of a thread.
SMALL = 16 * KiB
#: Bytes of the buffer for blocks that are hashed together.
BUFFER = 4 * MiB

_ZEROS = memoryview(bytes(BUFFER))


def default_threads() -> int:
    """Return the default number of threads: one for each processor of this process's affinity mask, at most 4."""
    return min(len(os.sched_getaffinity(0)), MOST_BY_DEFAULT)


class Hashing:
    """The threads that hash memory. They do no storage I/O."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hash")

    async def run(self, function: Callable[[], None], size: int, buffer: Buffer | None = None) -> None:
        """Call a function in a thread, or on the loop if it hashes at most SMALL bytes. Raises NoThread.

        This retains the buffer until the function returns, even if the task is cancelled.
        """
        if size <= SMALL:
            function()
            return
        loop = asyncio.get_running_loop()
        future: Future[None] = Future()
        try:
            self._executor.submit(_call, function, future)
        except RuntimeError:  # no thread can be started, or the daemon ends
            # The executor keeps the call nevertheless, and does it when it has a thread: now, or never.
            if future.cancel():
                raise NoThread from None
        if buffer is not None:
            buffer.retain()
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(buffer.release))
        await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the threads. Blocks until all pieces are done whose tasks were not cancelled."""
        self._executor.shutdown()


def _call(function: Callable[[], None], future: "Future[None]") -> None:
    """Call a function and set its future, unless that was cancelled before."""
    if future.set_running_or_notify_cancel():
        settle(future, function)


async def hash_blocks(
    backend: Backend, op: Operation, hashing: Hashing, algorithm: str, blocks: Sequence[DataBlock], buffer: Buffer
) -> list[bytes]:
    """Read blocks of one length into the buffer piece by piece, hash them together, and return their raw digests.

    Pass at most lanes_of(algorithm) blocks. Raises Canceled, StorageError.
    """
    digests = new_digests(algorithm)
    size, most = blocks[0].length, min(buffer.size, BUFFER) // digests.lanes
    of_blocks = [Pieces(block) for block in blocks]
    for start in range(0, size, most):
        count = min(most, size - start)
        pieces: list[Piece] = []
        for lane, block in enumerate(blocks):
            place = _PieceBuffer(backend, op, buffer, lane * most, block.start + start, count)
            pieces.append(await place.fill(of_blocks[lane]))
        add = partial(digests.add, pieces, count, last=start + count == size)
        await hashing.run(add, count * len(blocks), buffer)
    return digests.digests()[: len(blocks)]


class _PieceBuffer(NamedTuple):
    """A piece, which begins at byte `inside` of the buffer and at byte `start` of the image."""

    backend: Backend
    op: Operation
    buffer: Buffer
    inside: int
    start: int
    length: int

    async def fill(self, pieces: Pieces) -> Piece:
        """Read the data of the piece, and fill the rest with zeros. Return None if the piece is all zeros."""
        end = self.start + self.length
        runs = pieces.take(self.start, end)
        if not runs:
            return None
        filled = self.start
        for run in runs:
            self._clear(filled, run.start)
            await self.backend.pread(self.op, self._slice(run.start, run.end), run.start)
            filled = run.end
        self._clear(filled, end)
        return self._slice(self.start, end).view

    def _clear(self, start: int, end: int) -> None:
        self._slice(start, end).view[:] = _ZEROS[: end - start]

    def _slice(self, start: int, end: int) -> Slice:
        return self.buffer.slice(self.inside + start - self.start, self.inside + end - self.start)
