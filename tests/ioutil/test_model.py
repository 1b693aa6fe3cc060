# SPDX-License-Identifier: Apache-2.0
"""Real storage against a model in memory: random operations, from one thread and from eight.

IMAGEIO_TEST_LONG=1 runs a longer campaign, of other random numbers each time: 7 minutes, more on a busy machine.
"""

import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ioutil_ext import lib
from tests.support.realstorage import Storage

from .disk import fill, filled, first_difference, on_disk
from .engine_driver import DEADLINE, Image, running_engine
from .model import BLOCK, Model, random_operation

LONG = os.environ.get("IMAGEIO_TEST_LONG") == "1"

# Hypothesis takes pytest's timeout for a finding and goes on, for minutes, to look for a shorter one.
pytestmark = [pytest.mark.timeout(3600)] if LONG else []

KiB = 1024

THREADS = 8
TURNS = 2000 if LONG else 300  # operations of each thread


def run_threads(work: list[Callable[[], None]]) -> None:
    """Run all at once; raise the first failure of one."""
    failures: list[BaseException] = []

    def run(one: Callable[[], None]) -> None:
        try:
            one()
        except (AssertionError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE * (20 if LONG else 3))
        assert not thread.is_alive(), "an operation hangs"
    if failures:
        raise failures[0]


# Eight threads


def cut(size: int, parts: int, chance: random.Random, unit: int) -> list[tuple[int, int]]:
    """Cut an image into parts at random multiples of unit."""
    points = sorted(chance.sample(range(1, size // unit), parts - 1))
    bounds = [0, *(point * unit for point in points), size]
    return list(itertools.pairwise(bounds))


@pytest.mark.parametrize("sharing", ["disjoint blocks", "shared blocks"])
@pytest.mark.parametrize("handles", ["one", "two", "mixed"])
def test_eight_threads_leave_what_the_model_says(storage: Storage, sharing: str, handles: str) -> None:
    """Each thread changes bytes of its own; with shared blocks its neighbours are in the same ones.

    Through one handle, two, or two of which one is buffered.
    """
    seed = random.randrange(2**32) if LONG else 1234
    chance = random.Random(seed)
    odd = 0 if storage.is_block else 1234
    size = 512 * KiB + odd
    path, content = filled(storage, size)
    unit = 16 * KiB if sharing == "disjoint blocks" else 1
    bounds = cut(size, 3 * THREADS if unit > 1 else 12 * THREADS, chance, unit)
    images = [Image(path)]
    if handles != "one":
        images.append(Image(path, buffered=handles == "mixed"))
    models = [
        Model(images[index % len(images)], start, content[start:end]) for index, (start, end) in enumerate(bounds)
    ]

    def worker(number: int) -> Callable[[], None]:
        own, dice = models[number::THREADS], random.Random(seed + number)

        def work() -> None:
            for _ in range(TURNS):
                random_operation(dice, dice.choice(own))

        return work

    try:
        run_threads([worker(number) for number in range(THREADS)])
        images[0].flush()
        expected = b"".join(model.content for model in models)
        assert first_difference(images[-1].read(0, size), expected) == "", f"seed {seed}"
    finally:
        for image in images:
            image.close()
    assert first_difference(on_disk(path), expected) == "", f"seed {seed}, on disk"
    if not storage.is_block:
        assert path.stat().st_size == size


def test_eight_queues_of_an_engine_leave_what_the_model_says(storage: Storage) -> None:
    """As above through workers and queues, with many operations of one thread under way at once."""
    size = 256 * KiB
    path, content = filled(storage, size)
    slots = size // 500  # 500 bytes each: every block is shared
    with running_engine(max_threads=32) as engine:
        opener = engine.queue()
        handle = opener.open(path)

        def worker(number: int) -> Callable[[], None]:
            queue, dice = engine.queue(), random.Random(number)

            def work() -> None:
                for _ in range(TURNS // 8):
                    cookies = []
                    for slot in dice.sample(range(number, slots, THREADS), 8):
                        offset = slot * 500
                        if dice.random() < 0.3:
                            content[offset : offset + 500] = bytes(500)
                            cookies.append(queue.submit(lib.IOU_ZERO, handle, offset, 500))
                        else:
                            data = dice.randbytes(500)
                            content[offset : offset + 500] = data
                            cookies.append(queue.submit(lib.IOU_WRITE, handle, offset, 500, buffer=data))
                    for cookie in cookies:
                        assert queue.wait(cookie).error == 0

            return work

        run_threads([worker(number) for number in range(THREADS)])
        opener.run(lib.IOU_FLUSH, handle)
        opener.close_handle(handle)
    assert first_difference(on_disk(path), content) == ""


def test_eight_threads_grow_a_file(file_storage: Storage) -> None:
    path = file_storage.make(0)
    pieces = 8 * 25
    sizes = [random.Random(9).randint(1, 9000) for _ in range(pieces)]
    offsets = [sum(sizes[:index]) for index in range(pieces)]
    expected = bytearray()
    for index, size in enumerate(sizes):
        expected += bytes(size) if index % 3 == 0 else bytes([index % 255 + 1]) * size
    with Image(path) as image:

        def worker(number: int) -> Callable[[], None]:
            def work() -> None:
                for index in range(number, pieces, THREADS):
                    offset, size = offsets[index], sizes[index]
                    if index % 3 == 0:
                        image.zero(offset, size, lib.IOU_ALLOCATE if index % 2 else 0)
                    else:
                        image.write(offset, bytes(expected[offset : offset + size]))

            return work

        run_threads([worker(number) for number in range(THREADS)])
        assert image.info.size == len(expected)
    assert first_difference(on_disk(path), expected) == ""


# One thread, any sequence


MACHINE_SIZE = 64 * KiB


class ImageMachine(RuleBasedStateMachine):
    """An image, a file of odd size, with two handles on it, changed and grown at random."""

    # Set by the subclass that a test makes; one image for all examples, because making a device takes its time.
    path: Path
    is_block: bool

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []

    @initialize(seed=st.integers(0, 2**32), odd=st.integers(0, 5000), buffered=st.booleans())
    def make(self, seed: int, odd: int, buffered: bool) -> None:
        size = MACHINE_SIZE + (0 if self.is_block else odd)
        content = fill(self.path, size, seed)
        self.limit = size if self.is_block else size + 64 * KiB
        self.models = [Model(Image(self.path, buffered=buffered and number == 1), 0, content) for number in range(2)]
        # One content, whichever handle is used.
        self.models[1].content = self.models[0].content

    def clamp(self, offset: int, length: int) -> tuple[int, int]:
        offset = min(offset, self.limit - 1)
        return offset, min(length, self.limit - offset)

    offsets = st.one_of(st.integers(0, 130 * KiB), st.integers(0, 32).map(lambda block: block * BLOCK))
    lengths = st.one_of(
        st.integers(1, 600), st.integers(1, 40 * KiB), st.integers(1, 10).map(lambda block: block * BLOCK)
    )
    handles = st.integers(0, 1)

    @rule(handle=handles, offset=offsets, length=lengths, seed=st.integers(0, 999), align=st.booleans())
    def write(self, handle: int, offset: int, length: int, seed: int, align: bool) -> None:
        offset, length = self.clamp(offset, length)
        data = random.Random(seed).randbytes(length)
        self.models[handle].write(offset, data, lib.IOU_FUA if seed % 2 else 0, align=align)

    @rule(handle=handles, offset=offsets, length=lengths, allocate=st.booleans(), fast=st.booleans())
    def zero(self, handle: int, offset: int, length: int, allocate: bool, fast: bool) -> None:
        offset, length = self.clamp(offset, length)
        flags = (lib.IOU_ALLOCATE if allocate else 0) | (lib.IOU_FAST_ONLY if fast else 0)
        self.models[handle].zero(offset, length, flags)

    @rule(handle=handles, offset=offsets, length=lengths)
    def trim(self, handle: int, offset: int, length: int) -> None:
        offset, length = self.clamp(offset, length)
        self.models[handle].trim(offset, length)

    @rule(handle=handles, offset=offsets, length=lengths)
    def read(self, handle: int, offset: int, length: int) -> None:
        size = len(self.models[0].content)
        offset = min(offset, size - 1)
        self.models[handle].check(offset, min(length, size - offset))

    @rule(handle=handles)
    def flush(self, handle: int) -> None:
        self.models[handle].image.flush()

    @precondition(lambda self: self.models)
    @rule()
    def extents_tell_no_hole_where_data_is(self) -> None:
        content = self.models[0].content
        position = 0
        for extent in self.models[0].image.extents(0, len(content)):
            assert extent.start == position
            position += extent.length
            if extent.hole:
                assert not any(content[extent.start : extent.start + extent.length])
        assert position == len(content)

    @precondition(lambda self: self.models)
    @invariant()
    def size_is_right(self) -> None:
        if not self.is_block:
            assert self.path.stat().st_size == len(self.models[0].content)
        assert self.models[0].image.info.size == len(self.models[0].content)

    def teardown(self) -> None:
        for model in self.models:
            model.image.close()
        if self.models:
            assert first_difference(on_disk(self.path), self.models[0].content) == ""


EXAMPLES, STEPS = (150, 60) if LONG else (25, 30)


def test_any_sequence_leaves_what_the_model_says(storage: Storage) -> None:
    path = storage.make(MACHINE_SIZE)
    machine = type("Machine", (ImageMachine,), {"path": path, "is_block": storage.is_block})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=not LONG,
            suppress_health_check=list(HealthCheck),
        ),
    )
