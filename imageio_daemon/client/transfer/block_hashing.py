# SPDX-License-Identifier: Apache-2.0
"""Hash blocks of a source, several at once where that is faster (image/digests.py)."""

from collections.abc import Callable, Sequence

from ...image.blockhash import BlockPlan, DataBlock, Pieces, ZeroBlocks
from ...image.digests import Piece, lanes_of, new_digests
from ...image.extents import Extent
from ..local.source import Source
from ..stopping import Stop
from . import workers
from .digest import Digest
from .memory import new_buffer
from .plan import Queue, Unit, units
from .remote_source import RemoteSource

#: Threads that hash a local image. Two are as fast as most disks.
THREADS = 2


def hash_all(source: Source, digest: Digest, watch: Callable[[int], None] = lambda _: None) -> None:
    """Hash a whole source, in threads. `watch` is called with numbers of hashed bytes. Raises LocalError."""
    stop = Stop()
    stop.call(source.stop)
    size = digest.block_size
    queue = Queue(units(source.extents(), block_size=size), source.portion, stop)

    def work() -> None:
        buffer = new_buffer(size)
        for unit in queue.take():
            stop.check()
            hash_unit(source, unit, buffer, digest, unit.start // size)
            watch(unit.end - unit.start)

    workers.run([queue.fill, *[work] * THREADS], stop)
    workers.run([source.check], stop)


def hash_unit(source: Source, unit: Unit, buffer: memoryview, digest: Digest, index: int) -> None:
    """Add the blocks of a unit of the source to the digest. `index` is the first block's. Raises LocalError."""
    if isinstance(source, RemoteSource) and source.hash_unit(unit, digest, index):
        return
    # Blocks that are hashed together are read in turns, and a stream only in order.
    lanes = 1 if source.is_stream else lanes_of(digest.algorithm)
    plan = BlockPlan(digest.block_size)
    blocks = [block for start, length, zero in unit.segments for block in plan.add(Extent(start, length, zero=zero))]
    group: list[DataBlock] = []
    for block in (*blocks, *plan.end()):
        if group and (len(group) == lanes or isinstance(block, ZeroBlocks) or block.length != group[0].length):
            index = _hash_blocks(source, group, buffer, digest, index)
            group = []
        if isinstance(block, ZeroBlocks):
            digest.add(index, digest.zero_digest(block.length), block.number)
            index += block.number
        else:
            group.append(block)
    if group:
        _hash_blocks(source, group, buffer, digest, index)


def _hash_blocks(source: Source, blocks: Sequence[DataBlock], buffer: memoryview, digest: Digest, index: int) -> int:
    """Add consecutive blocks of one length, and return the index after them."""
    digests = new_digests(digest.algorithm)
    size, most = blocks[0].length, len(buffer) // digests.lanes
    pieces = [Pieces(block) for block in blocks]
    for start in range(0, size, most):
        count = min(most, size - start)
        filled: list[Piece] = []
        for lane, block in enumerate(blocks):
            memory = buffer[lane * most : lane * most + count]
            filled.append(memory if _fill(source, pieces[lane], block.start + start, memory) else None)
        digests.add(filled, count, last=start + count == size)
    for found in digests.digests()[: len(blocks)]:
        digest.add(index, found)
        index += 1
    return index


def _fill(source: Source, pieces: Pieces, start: int, memory: memoryview) -> bool:
    """Read the piece from start on into the memory. Return False, without touching the memory, if it is all zeros."""
    end = start + len(memory)
    runs = pieces.take(start, end)
    position = start
    for run in runs:
        _clear(memory[position - start : run.start - start])
        source.read(run.start, memory[run.start - start : run.end - start])
        position = run.end
    if runs:
        _clear(memory[position - start :])
    return bool(runs)


def _clear(memory: memoryview) -> None:
    memory[:] = bytes(len(memory))
