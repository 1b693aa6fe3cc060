# SPDX-License-Identifier: Apache-2.0
"""Token buckets, as Python uses them."""

import asyncio
import time

import pytest

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.storage.bucket import LEAST_PIECE, Bucket
from imageio_daemon.units import MAX_RATE, MIN_RATE

MB = 1_000_000


async def test_bucket_without_a_rate_makes_nobody_wait() -> None:
    bucket = Bucket()
    await asyncio.wait_for(bucket.take(2**62), 1)
    assert (bucket.rate, bucket.limited, bucket.waiting) == (0, 0, 0)


@pytest.mark.parametrize("rate", [MAX_RATE + 1, 2**63])
def test_rate_that_c_does_not_take_is_refused(rate: int) -> None:
    with pytest.raises(InvalidRequest):
        Bucket(rate)


@pytest.mark.alone
async def test_first_taker_goes_at_once_and_the_next_when_it_is_paid() -> None:
    bucket = Bucket(MB)
    began = time.monotonic()
    await bucket.take(MB // 2)
    assert time.monotonic() - began < 0.3
    await bucket.take(10 * MB)
    assert 0.45 < time.monotonic() - began < 2
    assert 0.4 < bucket.limited < 2


@pytest.mark.alone
@pytest.mark.parametrize("rate", [MIN_RATE, 3_333_333, MAX_RATE])
async def test_rate_holds_for_small_takes(rate: int) -> None:
    bucket = Bucket(rate)
    piece = rate // 50 + 1
    began = time.monotonic()
    for _ in range(51):
        await bucket.take(piece)
    assert 0.98 < time.monotonic() - began < 2


async def test_takers_go_in_the_order_of_their_calls() -> None:
    bucket = Bucket(MB)
    order: list[int] = []

    async def take(number: int) -> None:
        await bucket.take(MB // 10)
        order.append(number)

    await asyncio.gather(*(take(number) for number in range(6)))
    assert order == [0, 1, 2, 3, 4, 5]


@pytest.mark.alone
async def test_limit_of_the_parent_is_that_of_its_children_together() -> None:
    parent = Bucket(MB)
    children = [Bucket(0, parent), Bucket(5 * MB, parent)]
    began = time.monotonic()
    for number in range(6):
        await children[number % 2].take(MB // 5)
    assert 0.95 < time.monotonic() - began < 2
    assert children[0].limited > 0.3
    assert parent.limited == 0, "the children wait"


async def test_other_rate_counts_for_what_waits() -> None:
    bucket = Bucket(MIN_RATE)
    await bucket.take(100 * MIN_RATE)
    waiting = asyncio.create_task(bucket.take(1))
    await asyncio.sleep(0)
    assert bucket.waiting == 1
    bucket.rate = 200 * MIN_RATE
    await asyncio.wait_for(waiting, 5)
    assert bucket.waiting == 0


async def test_cancelled_taker_gives_back_what_it_took() -> None:
    bucket = Bucket(MB)
    await bucket.take(MB // 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bucket.take(1000 * MB), 0.05)
    assert bucket.waiting == 0
    await asyncio.wait_for(bucket.take(1), 5)


async def test_unused_time_is_given_for_a_quarter_of_a_second_at_most() -> None:
    bucket = Bucket(MB)
    await bucket.take(1)
    await asyncio.sleep(0.6)
    began = time.monotonic()
    await bucket.take(MB // 4)
    await bucket.take(MB // 4)
    await bucket.take(1)
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize(
    ("rate", "most", "piece"),
    [(0, 2**20, 2**20), (MIN_RATE, 2**20, LEAST_PIECE), (2**22, 2**20, 2**19), (2**30, 2**20, 2**20)],
)
def test_pieces_are_shorter_if_the_rate_is_low(rate: int, most: int, piece: int) -> None:
    assert Bucket(rate).piece(most) == piece
    assert Bucket(0, Bucket(rate)).piece(most) == piece
