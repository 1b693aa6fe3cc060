# SPDX-License-Identifier: Apache-2.0
"""Arguments that make no sense are refused before anything is queued."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ioutil_ext import ffi, lib

from .engine_driver import Engine, Queue, running_engine

KiB = 1024
SIZE = 256 * KiB

# Bad arguments


@pytest.mark.parametrize("threads", [0, 1025, 2**32 - 1])
def test_a_senseless_number_of_threads_is_refused(threads: int) -> None:
    result = ffi.new("iou_engine **")
    assert lib.iou_engine_new(threads, 1000, result) == -errno.EINVAL


@pytest.mark.parametrize("threads", [1, 1024])
def test_the_limits_of_threads_are_taken(threads: int) -> None:
    engine = Engine(threads)
    assert engine.stop() == 0
    engine.free()


@pytest.fixture
def opened(image: Path) -> Iterator[tuple[Queue, Any]]:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        yield queue, handle
        queue.close_handle(handle)


def refusal(queue: Queue, *arguments: Any, **options: Any) -> int:
    try:
        cookie = queue.submit(*arguments, **options)
    except OSError as error:
        return int(error.errno or 0)
    queue.wait(cookie)
    return 0


@pytest.mark.parametrize("kind", [0, lib.IOU_OPEN, lib.IOU_EXTENTS + 1, 2**32 - 1])
def test_an_unknown_kind_is_refused(opened: tuple[Queue, Any], kind: int) -> None:
    queue, handle = opened
    assert refusal(queue, kind, handle, 0, 512, buffer=bytearray(512)) == errno.EINVAL


@pytest.mark.parametrize(
    "kind", [lib.IOU_STAT, lib.IOU_READ, lib.IOU_WRITE, lib.IOU_ZERO, lib.IOU_TRIM, lib.IOU_FLUSH, lib.IOU_EXTENTS]
)
@pytest.mark.parametrize("flags", [64, 2**31])
def test_unknown_flags_are_refused(opened: tuple[Queue, Any], kind: int, flags: int) -> None:
    queue, handle = opened
    assert refusal(queue, kind, handle, 0, 512, flags, buffer=bytearray(512)) == errno.EINVAL


@pytest.mark.parametrize("kind", [lib.IOU_READ, lib.IOU_WRITE, lib.IOU_ZERO, lib.IOU_TRIM])
@pytest.mark.parametrize(
    ("offset", "length"),
    [(2**63, 512), (2**63 - 512, 1024), (2**64 - 512, 512), (2**64 - 1, 2**64 - 1), (512, 2**64 - 512), (0, 2**63)],
)
def test_a_range_past_the_largest_offset_is_refused(
    opened: tuple[Queue, Any], kind: int, offset: int, length: int
) -> None:
    queue, handle = opened
    assert refusal(queue, kind, handle, offset, length, buffer=bytearray(1024)) == errno.EINVAL


@pytest.mark.parametrize("kind", [lib.IOU_READ, lib.IOU_WRITE, lib.IOU_EXTENTS])
def test_a_missing_buffer_is_refused(opened: tuple[Queue, Any], kind: int) -> None:
    queue, handle = opened
    assert refusal(queue, kind, handle, 0, 512) == errno.EINVAL


def test_extents_into_a_buffer_without_room_for_a_record_are_refused(opened: tuple[Queue, Any]) -> None:
    queue, handle = opened
    assert refusal(queue, lib.IOU_EXTENTS, handle, 0, 512, buffer=bytearray(8)) == errno.EINVAL


def test_a_missing_handle_is_refused(opened: tuple[Queue, Any]) -> None:
    queue, _ = opened
    assert refusal(queue, lib.IOU_STAT, ffi.NULL) == errno.EINVAL


@pytest.mark.parametrize("kind", [lib.IOU_WRITE, lib.IOU_ZERO, lib.IOU_TRIM])
def test_changing_through_a_read_only_handle_is_refused(image: Path, kind: int) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image, 0)
        assert refusal(queue, kind, handle, 0, 512, buffer=bytes(512)) == errno.EINVAL
        queue.run(lib.IOU_READ, handle, 0, 512, buffer=bytearray(512))
        queue.close_handle(handle)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (b"relative", errno.EINVAL),
        (b"", errno.EINVAL),
        (b"/" + b"x" * 4095, errno.ENAMETOOLONG),
        (b"/" + b"x" * 100_000, errno.ENAMETOOLONG),
    ],
)
def test_a_senseless_path_is_refused(path: bytes, number: int) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        assert lib.iou_submit_open(queue.queue, 1, path, 0, ffi.NULL) == -number


def test_the_longest_path_is_taken() -> None:
    with running_engine() as engine:
        queue = engine.queue()
        path = ("/" + "x" * 200) * 20
        path += "/" + "y" * (4095 - len(path) - 1)
        assert len(path) == 4095
        assert queue.wait(queue.submit_open(path)).error == errno.ENOENT


@pytest.mark.parametrize("flags", [lib.IOU_FUA, lib.IOU_ALLOCATE, lib.IOU_FAST_ONLY, 32, 2**31])
def test_flags_that_open_does_not_know_are_refused(image: Path, flags: int) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        assert lib.iou_submit_open(queue.queue, 1, str(image).encode(), flags, ffi.NULL) == -errno.EINVAL


@pytest.mark.parametrize("kind", [lib.IOU_WRITE, lib.IOU_ZERO, lib.IOU_TRIM, lib.IOU_READ])
def test_nothing_at_all_is_a_range(opened: tuple[Queue, Any], kind: int) -> None:
    queue, handle = opened
    assert queue.run(kind, handle, SIZE, 0, buffer=bytearray(1)).done == 0
