# SPDX-License-Identifier: Apache-2.0
"""The zeroing policy: every method, every errno, allocate and fast_only, on files and on block devices.

policy_table.predict() says what has to come of each.
"""

import errno
import itertools

import pytest

from ioutil_ext import lib

from .engine_driver import Result
from .fake_image import CONTENT, SIZE, FakeImage, KiB, opened, zeroed
from .policy_table import (
    CAPABILITY,
    REFUSED,
    UNSUPPORTED,
    ZEROING_CALLS,
    Outcome,
    all_faults,
    calls_of,
    predict,
    predict_fast,
)

OFFSET, LENGTH = 64 * KiB, 64 * KiB


def given_up(result: Result) -> dict[str, int]:
    """Return the errno of each call that a completion tells as given up."""
    return {call: number for call, number in zip(CAPABILITY, result.given_up, strict=True) if number}


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_each_method_follows_the_table_for_every_errno(fake: FakeImage, kind: str, allocate: bool) -> None:
    flags = lib.IOU_ALLOCATE if allocate else 0
    for faults in all_faults(calls_of(kind)):
        expected = predict(kind, allocate, faults)
        with opened(fake, **faults) as image:
            result = image.attempt(lib.IOU_ZERO, OFFSET, LENGTH, flags)
            seen = Outcome(
                result.error,
                result.syscall,
                result.method if result.error == 0 else lib.IOU_METHOD_NONE,
                fake.names(*ZEROING_CALLS),
                {call for call in calls_of(kind) if call != "pwrite" and not getattr(image.info, CAPABILITY[call])},
                given_up(result),
            )
        assert seen == expected, faults
        if result.error == 0:
            assert bytes(fake.content) == zeroed(OFFSET, LENGTH), faults
            assert result.done == LENGTH
        else:
            assert result.done < LENGTH, faults
            outside = bytes(fake.content[:OFFSET] + fake.content[OFFSET + LENGTH :])
            assert outside == CONTENT[:OFFSET] + CONTENT[OFFSET + LENGTH :], faults


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_what_a_call_cannot_do_is_never_asked_again(fake: FakeImage, kind: str, allocate: bool) -> None:
    flags = lib.IOU_ALLOCATE if allocate else 0
    for call, number in itertools.product(calls_of(kind)[:-1], UNSUPPORTED):
        first = predict(kind, allocate, {call: number})
        with opened(fake, **{call: number}) as image:
            image.zero(OFFSET, LENGTH, flags)
            fake.calls.clear()
            fake.faults = {}
            fake.content[:] = CONTENT
            result = image.zero(OFFSET, LENGTH, flags)
            if call in first.calls:
                assert call not in fake.names(*ZEROING_CALLS)
                assert result.method == first.method
                assert getattr(image.info, CAPABILITY[call]) == 0
        assert bytes(fake.content) == zeroed(OFFSET, LENGTH)


def test_what_was_learnt_holds_for_every_handle_of_the_image(fake: FakeImage) -> None:
    with opened(fake, punch_hole=errno.EOPNOTSUPP) as image, fake.opened() as other:
        image.zero(OFFSET, LENGTH)
        assert other.info.can_punch_hole == 0
        fake.calls.clear()
        other.zero(OFFSET, LENGTH)
    assert "punch_hole" not in fake.names()


@pytest.mark.parametrize("number", REFUSED)
def test_a_refused_range_teaches_nothing(fake: FakeImage, number: int) -> None:
    with opened(fake, punch_hole=[number]) as image:
        image.zero(OFFSET, LENGTH)
        assert fake.names(*ZEROING_CALLS) == ["punch_hole", "zero_range"]
        fake.calls.clear()
        result = image.zero(OFFSET, LENGTH)
        assert fake.names(*ZEROING_CALLS) == ["punch_hole"]
        assert result.method == lib.IOU_METHOD_PUNCH_HOLE


@pytest.mark.parametrize("number", [*UNSUPPORTED, *REFUSED])
def test_a_method_that_is_given_up_is_told_once_for_the_image(fake: FakeImage, number: int) -> None:
    with opened(fake, punch_hole=number, zero_range=number) as image, fake.opened() as other:
        assert given_up(image.zero(OFFSET, LENGTH)) == {"punch_hole": number, "zero_range": number}
        assert given_up(image.zero(OFFSET, LENGTH)) == {}
        assert given_up(other.trim(OFFSET, LENGTH)) == {}


def test_a_trim_tells_that_punching_was_given_up(fake: FakeImage) -> None:
    with opened(fake, punch_hole=errno.EBUSY) as image:
        assert given_up(image.trim(OFFSET, LENGTH)) == {"punch_hole": errno.EBUSY}


def test_a_refused_fast_request_tells_what_was_given_up(fake_block: FakeImage) -> None:
    with opened(fake_block, punch_hole=errno.EOPNOTSUPP) as image:
        result = image.attempt(lib.IOU_ZERO, OFFSET, LENGTH, lib.IOU_FAST_ONLY)
    assert result.error == errno.ENOTSUP
    assert given_up(result) == {"punch_hole": errno.EOPNOTSUPP}


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_an_interrupted_call_is_repeated(fake: FakeImage, kind: str, allocate: bool) -> None:
    flags = lib.IOU_ALLOCATE if allocate else 0
    for faults in all_faults(calls_of(kind)):
        if errno.EIO in faults.values():
            continue
        # Each call is interrupted twice, then answers as it would have.
        interrupted: dict[str, int | list[int]] = {
            call: [errno.EINTR, errno.EINTR, *[number] * 50] for call, number in faults.items()
        }
        with opened(fake, **interrupted) as image:
            result = image.attempt(lib.IOU_ZERO, OFFSET, LENGTH, flags)
        expected = predict(kind, allocate, faults)
        assert (result.error, result.syscall) == (expected.error, expected.syscall), faults
        if result.error == 0:
            assert result.method == expected.method, faults
            assert bytes(fake.content) == zeroed(OFFSET, LENGTH), faults


# fast_only


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_fast_only_is_fast_or_changes_nothing_for_every_errno(fake: FakeImage, kind: str, allocate: bool) -> None:
    flags = lib.IOU_FAST_ONLY | (lib.IOU_ALLOCATE if allocate else 0)
    for faults in all_faults(calls_of(kind)):
        with opened(fake, **faults) as image:
            result = image.attempt(lib.IOU_ZERO, OFFSET, LENGTH, flags)
        expected = predict_fast(kind, allocate, faults)
        assert result.error in [outcome.error for outcome in expected], faults
        if result.error == errno.ENOTSUP:
            assert bytes(fake.content) == CONTENT, faults
        elif result.error:
            assert (result.error, result.syscall) in [(o.error, o.syscall) for o in expected], faults
        else:
            assert result.method == expected[0].method, faults
            assert bytes(fake.content) == zeroed(OFFSET, LENGTH), faults
        assert not {"pwrite", "blkzeroout"} & set(fake.names()), faults
        if kind == "block":
            assert fake.names(*ZEROING_CALLS) == ([] if allocate else ["punch_hole"]), faults


@pytest.mark.parametrize(("offset", "length"), [(1, 512), (OFFSET, 100), (OFFSET + 100, LENGTH), (7, SIZE - 50)])
def test_fast_only_of_an_unaligned_range_of_a_device_is_refused_before_any_call(
    fake_block: FakeImage, offset: int, length: int
) -> None:
    with opened(fake_block) as image:
        result = image.attempt(lib.IOU_ZERO, offset, length, lib.IOU_FAST_ONLY)
    assert result.error == errno.ENOTSUP
    assert result.done == 0
    assert fake_block.names("pread", *ZEROING_CALLS) == []
    assert bytes(fake_block.content) == CONTENT


@pytest.mark.parametrize("border", [0, OFFSET, OFFSET + 4 * KiB, OFFSET + LENGTH // 2, OFFSET + LENGTH, SIZE])
def test_fast_only_is_not_refused_when_a_part_of_a_device_was_zeroed(fake_block: FakeImage, border: int) -> None:
    """A device of two, of which the second cannot: the kernel tells it when the first has zeroed its part."""

    def enter(name: str, offset: int, length: int) -> None:
        if name == "punch_hole" and offset + length > border:
            fake_block._clear(offset, max(offset, border))
            raise OSError(errno.EOPNOTSUPP, "not supported")

    fake_block._enter = enter  # type: ignore[method-assign]
    with opened(fake_block) as image:
        result = image.attempt(lib.IOU_ZERO, OFFSET, LENGTH, lib.IOU_FAST_ONLY)
    if border <= OFFSET:
        assert (result.error, result.done) == (errno.ENOTSUP, 0)
        assert bytes(fake_block.content) == CONTENT
    elif border < OFFSET + LENGTH:
        assert result.error == errno.EIO
    else:
        assert result.error == 0
        assert bytes(fake_block.content) == zeroed(OFFSET, LENGTH)


def test_fast_only_with_allocate_is_refused_on_every_device(fake_block: FakeImage) -> None:
    with opened(fake_block) as image:
        result = image.attempt(lib.IOU_ZERO, 0, SIZE, lib.IOU_FAST_ONLY | lib.IOU_ALLOCATE)
    assert result.error == errno.ENOTSUP
    assert fake_block.names("pread", *ZEROING_CALLS) == []


@pytest.mark.parametrize(("offset", "length"), [(1, 1), (4095, 2), (OFFSET + 100, LENGTH), (7, SIZE - 50)])
@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_fast_only_of_a_file_works_at_any_alignment(
    fake_file: FakeImage, offset: int, length: int, allocate: bool
) -> None:
    flags = lib.IOU_FAST_ONLY | (lib.IOU_ALLOCATE if allocate else 0)
    with opened(fake_file) as image:
        image.zero(offset, length, flags)
    assert bytes(fake_file.content) == zeroed(offset, length)
    assert "pwrite" not in fake_file.names()


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
@pytest.mark.parametrize("offset", [SIZE - KiB, SIZE, SIZE + 5000])
def test_fast_only_that_fails_past_the_end_does_not_grow_the_file(
    fake_file: FakeImage, offset: int, allocate: bool
) -> None:
    flags = lib.IOU_FAST_ONLY | (lib.IOU_ALLOCATE if allocate else 0)
    with opened(
        fake_file, punch_hole=errno.EOPNOTSUPP, zero_range=errno.EOPNOTSUPP, fallocate=errno.EOPNOTSUPP
    ) as image:
        result = image.attempt(lib.IOU_ZERO, offset, 10_000, flags)
        if result.error == 0:
            # Past the end a grown file is a hole without any call; only where nothing has to stay provisioned.
            assert not allocate
            assert offset >= SIZE
            assert bytes(fake_file.content) == CONTENT + bytes(offset + 10_000 - SIZE)
        else:
            assert result.error == errno.ENOTSUP
            assert bytes(fake_file.content) == CONTENT
