# SPDX-License-Identifier: Apache-2.0
"""The memory of decoders: who gets some, and who is ended for others."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from imageio_daemon.client.local.compressed import zstd
from imageio_daemon.image.zstd import WINDOWS, totals
from tests.support.decoder import Decoder
from tests.support.polling import eventually

MiB = 1024 * 1024
#: Owners, no two tests have the same: who was ended is remembered for a while.
_owners = itertools.count(1)

Make = Callable[[int], Decoder]


def owner() -> int:
    return next(_owners)


@pytest.fixture
def make() -> Iterator[Make]:
    """Return what makes decoders with a window of so many MiB, whose head was read."""
    with ExitStack() as stack:

        def made(window: int) -> Decoder:
            decoder = Decoder(64 * MiB)
            stack.callback(decoder.close)
            head = b"\x28\xb5\x2f\xfd\0" + bytes([(window.bit_length() + 9) << 3])
            assert decoder.head(memoryview(head)) == (len(head), window * MiB + MiB // 2)
            return decoder

        yield made


def fill(make: Make, window: int, most: int = 200) -> list[Decoder]:
    """Let owners have a window of this size each, while there is memory."""
    admitted = []
    for _ in range(most):
        decoder = make(window)
        if not decoder.admit(owner()):
            break
        admitted.append(decoder)
    return admitted


def test_large_windows_do_not_keep_small_ones_out(make: Make) -> None:
    assert len(fill(make, 8)) == 7
    assert len(fill(make, 1)) == 2


def test_a_single_owner_has_two_thirds(make: Make) -> None:
    one = owner()
    while make(1).admit(one):
        pass
    assert WINDOWS * 6 // 10 < totals().memory <= WINDOWS * 2 // 3
    assert make(8).admit(owner())


def test_the_sum_is_limited(make: Make) -> None:
    fill(make, 1)
    assert totals().memory <= WINDOWS


def test_memory_is_given_back_at_the_end() -> None:
    before = totals().memory
    decoder = Decoder(10)
    decoder.head(memoryview(zstd.compress(b"x" * 10)))
    assert decoder.admit(owner())
    assert totals().memory > before
    decoder.close()
    assert totals().memory == before


def test_who_rests_longest_is_ended_for_another_one(make: Make) -> None:
    admitted = fill(make, 8)
    with ExitStack() as stack:
        for decoder in reversed(admitted):
            stack.enter_context(decoder.resting())
        new, one = make(8), owner()
        assert not new.admit(one)
        eventually(lambda: not new.admit(one) and admitted[-1].is_wanted, "it has rested for long enough")
        assert [decoder.is_wanted for decoder in admitted] == [False] * (len(admitted) - 1) + [True]
        admitted[-1].close()
        assert new.admit(one)


def test_no_more_are_ended_than_are_needed(make: Make) -> None:
    admitted = fill(make, 8)
    with ExitStack() as stack:
        for decoder in admitted:
            stack.enter_context(decoder.resting())
        new, one = make(1), owner()
        fill(make, 1)
        eventually(lambda: not new.admit(one) and any(each.is_wanted for each in admitted), "one has to end")
        for _ in range(10):
            assert not new.admit(one)
        assert sum(each.is_wanted for each in admitted) == 1


def test_who_goes_on_is_not_ended(make: Make) -> None:
    admitted = fill(make, 8)
    for decoder in admitted:
        with decoder.resting():
            pass
    new, one = make(8), owner()
    ends = time.monotonic() + 0.4
    while time.monotonic() < ends:
        assert not new.admit(one)
    assert not any(decoder.is_wanted for decoder in admitted)


def test_nobody_is_ended_for_his_own_other_request(make: Make) -> None:
    one = owner()
    admitted = []
    while (decoder := make(8)).admit(one):
        admitted.append(decoder)
    with ExitStack() as stack:
        for each in admitted:
            stack.enter_context(each.resting())
        ends = time.monotonic() + 0.4
        while time.monotonic() < ends:
            assert not make(8).admit(one)
    assert not any(each.is_wanted for each in admitted)


def test_who_was_ended_has_a_half(make: Make) -> None:
    slow, fast = owner(), owner()
    ended = make(8)
    assert ended.admit(slow)
    others = fill(make, 8)
    with ended.resting():
        new = make(8)
        eventually(lambda: not new.admit(fast) and ended.is_wanted, "it has to end")
    ended.close()
    others.pop().close()
    assert not make(8).admit(slow)
    assert new.admit(fast)
    for decoder in (*others, new):
        decoder.close()
    assert make(8).admit(slow)


def test_memory_is_taken_once_and_after_the_head(make: Make) -> None:
    with pytest.raises(ValueError, match="not complete"):
        Decoder(10).admit(owner())
    decoder = make(1)
    assert decoder.admit(owner())
    with pytest.raises(ValueError, match="was taken"):
        decoder.admit(owner())


def test_nothing_is_decoded_without_memory(make: Make) -> None:
    with pytest.raises(MemoryError):
        make(1).decode(memoryview(b"\0\0\0"), memoryview(bytearray(10)))
