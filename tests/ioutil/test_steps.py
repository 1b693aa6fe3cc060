# SPDX-License-Identifier: Apache-2.0
"""Long requests go in steps, with progress and cancellation between them."""

import errno
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from .engine_driver import Control, Image
from .fake_image import Call, FakeImage, HugeImage, KiB, opened

MiB = 1024 * KiB


@pytest.fixture
def huge(kind: str, placeholders: dict[str, Path]) -> Iterator[HugeImage]:
    """An image of 1 GiB and a bit, installed."""
    image = HugeImage(placeholders[kind], 1024 * MiB + 512 * KiB, is_block=kind == "block")
    with image.installed():
        yield image


@contextmanager
def opened_huge(huge: HugeImage, **faults: int | list[int]) -> Iterator[Image]:
    with ExitStack() as stack:
        image = stack.enter_context(huge.opened())
        huge.calls.clear()
        huge.faults = dict(faults)
        yield image


def assert_covered(calls: list[Call], offset: int, length: int) -> None:
    """Check that the calls go through a range in order, without gap or overlap."""
    for call in calls:
        assert call.offset == offset
        offset += call.length
        length -= call.length
    assert length == 0


def test_the_first_step_is_small_where_the_kernel_may_write(huge: HugeImage) -> None:
    with opened_huge(huge) as image:
        assert image.info.step == (16 if huge.is_block else 128) * MiB


@pytest.mark.parametrize(
    ("flags", "can_not", "used"),
    [
        (0, (), "punch_hole"),
        (0, ("punch_hole",), "zero_range"),
        (lib.IOU_ALLOCATE, (), "zero_range"),
        (lib.IOU_FAST_ONLY, (), "punch_hole"),
    ],
)
def test_no_call_asks_for_more_than_a_step(huge: HugeImage, flags: int, can_not: tuple[str, ...], used: str) -> None:
    with opened_huge(huge, **dict.fromkeys(can_not, errno.EOPNOTSUPP)) as image:
        steps = record_steps(huge, image)
        image.zero(0, huge.total, flags)
    calls = [call for call in huge.calls if call.name == used]
    assert len(calls) >= 4
    assert_covered(calls, 0, huge.total)
    assert all(call.length <= step for call, step in zip(calls, steps[-len(calls) :], strict=True))


def test_blkzeroout_goes_in_steps(placeholders: dict[str, Path]) -> None:
    if "block" not in placeholders:
        pytest.skip("no block device node here")
    huge = HugeImage(placeholders["block"], 1024 * MiB, is_block=True)
    with huge.installed(), opened_huge(huge, zero_range=errno.EOPNOTSUPP) as image:
        image.zero(0, huge.total, lib.IOU_ALLOCATE)
        calls = [call for call in huge.calls if call.name == "blkzeroout"]
        assert_covered(calls, 0, huge.total)
        assert max(call.length for call in calls) <= 512 * MiB
        assert calls[0].length <= 128 * MiB


@pytest.mark.parametrize(("kind", "most"), [("file", 1024 * MiB), ("block", 256 * MiB)])
def test_steps_of_quick_storage_grow(placeholders: dict[str, Path], kind: str, most: int) -> None:
    if kind not in placeholders:
        pytest.skip("no block device node here")
    huge = HugeImage(placeholders[kind], 8 * 1024 * MiB, is_block=kind == "block")
    with huge.installed(), opened_huge(huge) as image:
        image.zero(0, huge.total)
        assert_covered(huge.calls, 0, huge.total)
        assert max(call.length for call in huge.calls) == image.info.step == most


def record_steps(huge: HugeImage, image: Image) -> list[int]:
    """Note the step before each fallocate."""
    steps: list[int] = []
    original = huge._enter

    def enter(name: str, offset: int, length: int) -> None:
        steps.append(image.info.step)
        original(name, offset, length)

    huge._enter = enter  # type: ignore[method-assign]
    return steps


def test_trim_goes_in_steps(huge: HugeImage) -> None:
    with opened_huge(huge) as image:
        image.trim(0, huge.total)
    calls = [call for call in huge.calls if call.name == "punch_hole"]
    assert len(calls) >= 4
    assert_covered(calls, 0, huge.total // 4096 * 4096)


def test_a_slow_call_makes_the_next_one_smaller(huge: HugeImage) -> None:
    with opened_huge(huge) as image:
        original = huge.fallocate
        delays = iter([2.0])

        def fallocate(fd: int, mode: int, offset: int, length: int) -> int:
            # Storage that takes 2 s for its first step: the only way to show time to the C code.
            threading.Event().wait(next(delays, 0))
            return original(fd, mode, offset, length)

        huge.calls.clear()
        huge.fallocate = fallocate  # type: ignore[method-assign]
        with huge.installed():
            image.zero(0, 512 * MiB)
    calls = [call for call in huge.calls if call.name == "punch_hole"]
    # A quarter of it takes half a second.
    assert calls[1].length <= calls[0].length // 4
    assert_covered(calls, 0, 512 * MiB)


@pytest.mark.parametrize("operation", [lib.IOU_ZERO, lib.IOU_TRIM])
def test_progress_grows_with_each_step(huge: HugeImage, operation: int) -> None:
    control = Control()
    seen: list[tuple[int, int]] = []
    original = huge._enter

    def enter(name: str, offset: int, length: int) -> None:
        if name == "punch_hole":
            seen.append((control.done, offset))
        original(name, offset, length)

    huge._enter = enter  # type: ignore[method-assign]
    with opened_huge(huge) as image:
        result = image.run(operation, 0, huge.total, control=control)
    assert len(seen) >= 4
    assert [done for done, offset in seen] == [offset for done, offset in seen]
    assert control.done == result.done == huge.total


@pytest.mark.parametrize("operation", [lib.IOU_ZERO, lib.IOU_TRIM])
def test_cancel_ends_it_at_most_one_step_later(huge: HugeImage, operation: int) -> None:
    control = Control()
    original = huge._enter

    def enter(name: str, offset: int, length: int) -> None:
        original(name, offset, length)
        if name == "punch_hole" and offset > 0:
            control.cancel()

    huge._enter = enter  # type: ignore[method-assign]
    with opened_huge(huge) as image:
        result = image.attempt(operation, 0, huge.total, control=control)
    calls = [call for call in huge.calls if call.name == "punch_hole"]
    assert result.error == errno.ECANCELED
    assert len(calls) in (2, 3)
    assert result.done == control.done == sum(call.length for call in calls)


def test_cancel_ends_writing_of_zeros(huge: HugeImage) -> None:
    control = Control()
    original = huge._enter

    def enter(name: str, offset: int, length: int) -> None:
        original(name, offset, length)
        if name == "pwrite":
            control.cancel()

    huge._enter = enter  # type: ignore[method-assign]
    cannot = dict.fromkeys(("punch_hole", "zero_range", "fallocate", "blkzeroout"), errno.EOPNOTSUPP)
    with opened_huge(huge, **cannot) as image:
        result = image.attempt(lib.IOU_ZERO, 0, huge.total, control=control)
    assert result.error == errno.ECANCELED
    written = [call.length for call in huge.calls if call.name == "pwrite"]
    assert len(written) in (1, 2)
    assert result.done == control.done == sum(written)


@pytest.mark.parametrize(("operation", "call"), [(lib.IOU_WRITE, "pwrite"), (lib.IOU_READ, "pread")])
def test_cancel_ends_a_long_transfer(huge: HugeImage, operation: int, call: str) -> None:
    control = Control()
    original = huge._enter

    def enter(name: str, offset: int, length: int) -> None:
        original(name, offset, length)
        if name == call:
            control.cancel()

    huge._enter = enter  # type: ignore[method-assign]
    buffer = ffi.from_buffer(bytearray(64 * MiB))
    with opened_huge(huge) as image:
        result = image.attempt(operation, 0, len(buffer), buffer=buffer, control=control)
    moved = [made.length for made in huge.calls if made.name == call]
    assert result.error == errno.ECANCELED
    assert len(moved) in (1, 2)
    assert result.done == control.done == sum(moved)


def test_an_operation_that_was_canceled_before_touches_nothing(fake: FakeImage) -> None:
    control = Control()
    control.cancel()
    with opened(fake) as image:
        result = image.attempt(lib.IOU_ZERO, 64 * KiB, 64 * KiB, control=control)
    assert (result.error, result.done, control.done) == (errno.ECANCELED, 0, 0)
    assert fake.names() == []


def test_an_error_after_some_steps_tells_what_was_done(huge: HugeImage) -> None:
    control = Control()
    with opened_huge(huge, punch_hole=[0, 0, errno.EIO]) as image:
        result = image.attempt(lib.IOU_ZERO, 0, huge.total, control=control)
    calls = [call for call in huge.calls if call.name == "punch_hole"]
    assert (result.error, result.syscall) == (errno.EIO, lib.IOU_SYS_PUNCH_HOLE)
    assert result.done == control.done == sum(call.length for call in calls[:-1])


@pytest.mark.parametrize(("flags", "call"), [(0, "punch_hole"), (lib.IOU_ALLOCATE, "zero_range")])
def test_a_fast_zero_that_is_refused_midway_does_not_say_that_nothing_was_changed(
    placeholders: dict[str, Path], flags: int, call: str
) -> None:
    huge = HugeImage(placeholders["file"], 1024 * MiB, is_block=False)
    faults: dict[str, int | list[int]] = dict.fromkeys(("punch_hole", "zero_range", "fallocate"), errno.EOPNOTSUPP)
    with huge.installed(), opened_huge(huge, **{**faults, call: [0, errno.EOPNOTSUPP]}) as image:
        result = image.attempt(lib.IOU_ZERO, 0, huge.total, flags | lib.IOU_FAST_ONLY)
    assert result.error == errno.EIO
    assert result.done == 128 * MiB


def test_a_method_lost_midway_goes_on_with_the_next(huge: HugeImage) -> None:
    with opened_huge(huge, punch_hole=[0, 0, errno.EOPNOTSUPP]) as image:
        result = image.zero(0, huge.total)
    punched = [call for call in huge.calls if call.name == "punch_hole"][:-1]
    zeroed_ranges = [call for call in huge.calls if call.name == "zero_range"]
    assert_covered([*punched, *zeroed_ranges], 0, huge.total)
    assert result.method == lib.IOU_METHOD_ZERO_RANGE, "the most expensive one is told"


def test_the_most_expensive_method_is_told_also_when_it_was_not_the_last(placeholders: dict[str, Path]) -> None:
    huge = HugeImage(placeholders["file"], 0, is_block=False)
    faults: dict[str, int | list[int]] = {"zero_range": errno.EOPNOTSUPP, "punch_hole": [0, errno.EOPNOTSUPP]}
    with huge.installed(), opened_huge(huge, **faults) as image:
        result = image.zero(0, 1024 * MiB, lib.IOU_ALLOCATE)
    assert_covered([call for call in huge.calls if call.name == "fallocate"], 0, 1024 * MiB)
    assert result.method == lib.IOU_METHOD_PUNCH_AND_ALLOCATE
    assert huge.total == 1024 * MiB
