# SPDX-License-Identifier: Apache-2.0
import asyncio
import errno
import mmap
import os

import pytest

from imageio_daemon.errors import Unavailable
from imageio_daemon.storage.buffers import MIN_BUFFER, PAGE, Buffer, BufferPool
from imageio_daemon.units import MiB
from ioutil_ext import ffi


async def test_buffer_is_page_aligned() -> None:
    buffer = await BufferPool(MiB).acquire(1)
    assert int(ffi.cast("uintptr_t", buffer.address)) % PAGE == 0


async def test_size_is_rounded_up_to_a_power_of_two() -> None:
    pool = BufferPool(MiB)
    assert (await pool.acquire(MIN_BUFFER + 1)).size == 2 * MIN_BUFFER


async def test_buffer_comes_back_only_after_its_last_release() -> None:
    pool = BufferPool(MiB)
    buffer = await pool.acquire(MiB)
    buffer.retain()
    buffer.release()
    assert pool.try_acquire(MiB) is None
    buffer.release()
    assert pool.try_acquire(MiB) is buffer


async def test_releasing_more_often_than_retained_is_a_bug() -> None:
    buffer = await BufferPool(MiB).acquire(1)
    buffer.release()
    with pytest.raises(RuntimeError):
        buffer.release()


async def test_whole_budget_is_lent_and_no_more() -> None:
    pool = BufferPool(4 * MIN_BUFFER)
    lent = [pool.try_acquire(MIN_BUFFER) for _ in range(5)]
    assert [b is not None for b in lent] == [True] * 4 + [False]


async def test_waiter_gets_the_buffer_that_comes_back() -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1)
    waiting = asyncio.create_task(pool.acquire(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    assert await waiting is first


async def test_waiters_are_served_in_order() -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1)
    order: list[int] = []

    async def take(number: int) -> None:
        buffer = await pool.acquire(1)
        order.append(number)
        buffer.release()

    tasks = [asyncio.create_task(take(n)) for n in range(5)]
    await asyncio.sleep(0)
    first.release()
    await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_reading_ahead_never_overtakes_a_waiter() -> None:
    pool = BufferPool(2 * MIN_BUFFER)
    first = await pool.acquire(MIN_BUFFER)
    waiting = asyncio.create_task(pool.acquire(2 * MIN_BUFFER))
    await asyncio.sleep(0)
    assert pool.try_acquire(MIN_BUFFER) is None
    first.release()
    (await waiting).release()


async def test_free_buffers_of_another_size_make_room() -> None:
    pool = BufferPool(MiB)
    small = [await pool.acquire(MIN_BUFFER) for _ in range(16)]
    for buffer in small:
        buffer.release()
    assert (await pool.acquire(MiB)).size == MiB
    assert pool.allocated == MiB


async def test_cancelled_waiter_leaves_the_buffer_to_the_next() -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1)
    waiters = [asyncio.create_task(pool.acquire(1)) for _ in range(2)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    first.release()
    assert await waiters[1] is first
    with pytest.raises(asyncio.CancelledError):
        await waiters[0]


async def test_waiter_cancelled_after_it_was_served_gives_the_buffer_back() -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1)
    waiting = asyncio.create_task(pool.acquire(1))
    await asyncio.sleep(0)
    first.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.in_use == 0


async def test_request_that_waits_too_long_for_memory_is_refused() -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1)
    with pytest.raises(Unavailable):
        async with pool.lease("a", None, 0):
            pass
    assert pool.waiting == 0
    first.release()
    assert pool.in_use == 0


async def test_more_than_the_whole_budget_is_refused() -> None:
    with pytest.raises(Unavailable):
        await BufferPool(MiB).acquire(2 * MiB)


async def test_slice_outside_of_the_buffer_is_a_bug() -> None:
    buffer = await BufferPool(MiB).acquire(1)
    with pytest.raises(ValueError, match="outside"):
        buffer.slice(0, buffer.size + 1)


async def test_memory_that_cannot_be_had_is_the_waiters_error_and_not_the_releasers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = BufferPool(2 * MIN_BUFFER)
    first = await pool.acquire(MIN_BUFFER)
    waiting = asyncio.create_task(pool.acquire(2 * MIN_BUFFER))
    await asyncio.sleep(0)
    monkeypatch.setattr("imageio_daemon.storage.buffers.mmap.mmap", no_memory)
    first.release()
    with pytest.raises(Unavailable):
        await waiting
    monkeypatch.undo()
    assert pool.in_use == 0
    assert pool.try_acquire(2 * MIN_BUFFER) is not None


async def test_memory_that_cannot_be_had_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(MiB)
    monkeypatch.setattr("imageio_daemon.storage.buffers.mmap.mmap", no_memory)
    with pytest.raises(Unavailable):
        await pool.acquire(MIN_BUFFER)
    assert pool.try_acquire(MIN_BUFFER) is None
    assert (pool.in_use, pool.allocated) == (0, 0)


def no_memory(*_: object) -> mmap.mmap:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


async def _take_all(pool: BufferPool, owner: str) -> list[Buffer]:
    """Take the smallest buffers for an owner, as many as there are without waiting."""
    taken = []
    while (buffer := pool.try_acquire(1, owner)) is not None:
        taken.append(buffer)
    return taken


async def test_an_owner_has_no_more_than_twice_what_is_left() -> None:
    pool = BufferPool(24 * MIN_BUFFER)
    assert [len(await _take_all(pool, owner)) for owner in "abcd"] == [16, 5, 2, 1]


async def test_nobodys_buffers_may_be_all() -> None:
    pool = BufferPool(4 * MIN_BUFFER)
    assert [pool.try_acquire(1) is not None for _ in range(5)] == [True] * 4 + [False]


async def test_an_owner_that_gives_back_may_have_more() -> None:
    pool = BufferPool(4 * MIN_BUFFER)
    one, other = await _take_all(pool, "a")
    one.release()
    assert pool.try_acquire(1, "a") is one
    other.release()


async def test_who_waits_for_a_share_lets_others_pass() -> None:
    pool = BufferPool(4 * MIN_BUFFER)
    taken = await _take_all(pool, "a")
    waiting = asyncio.create_task(pool.acquire(1, "a"))
    await asyncio.sleep(0)
    assert pool.try_acquire(1, "b") is not None
    assert not waiting.done()
    taken[0].release()
    assert await waiting is taken[0]


async def test_owners_that_wait_take_turns() -> None:
    pool = BufferPool(2 * MIN_BUFFER)
    held = [await pool.acquire(1) for _ in range(2)]
    served: list[str] = []

    async def wait(owner: str) -> None:
        buffer = await pool.acquire(1, owner)
        served.append(owner)
        buffer.release()

    tasks = [asyncio.create_task(wait(owner)) for owner in ("a", "a", "a", "b", "c")]
    await asyncio.sleep(0)
    held[0].release()
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "c", "a", "a"]
    held[1].release()


async def test_a_claim_that_is_given_up_is_nobodys_turn() -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1, "a")
    given_up = asyncio.create_task(pool.acquire(1, "b"))
    waiting = asyncio.create_task(pool.acquire(1, "c"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    first.release()
    assert await waiting is first
