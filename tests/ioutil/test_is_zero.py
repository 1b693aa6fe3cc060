# SPDX-License-Identifier: Apache-2.0
"""Zero detection: every length, every alignment, every place of a byte that is not zero."""

import mmap
import os

import pytest

import ioutil_ext
from ioutil_ext import ffi, lib


def is_zero(memory: bytearray, start: int, length: int) -> bool:
    return bool(lib.iou_is_zero(ffi.from_buffer(memory) + start, length))


def test_nothing_is_zero() -> None:
    assert lib.iou_is_zero(ffi.from_buffer(b"x"), 0)


@pytest.mark.parametrize("start", [*range(17), 31, 32, 33, 63, 64])
def test_zeros_of_every_length_are_zero_whatever_lies_around(start: int) -> None:
    memory = bytearray(b"\xff" * 1024)
    for length in range(700):
        memory[start : start + length] = bytes(length)
        assert is_zero(memory, start, length), length


@pytest.mark.parametrize("start", [0, 1, 7, 33])
@pytest.mark.parametrize("length", [*range(1, 70), 127, 128, 129, 255, 256, 257, 511, 513, 1000])
def test_one_byte_anywhere_is_found(start: int, length: int) -> None:
    memory = bytearray(2048)
    for place in range(start, start + length):
        for value in (1, 0x80):
            memory[place] = value
            assert not is_zero(memory, start, length), place
        memory[place] = 0
    assert is_zero(memory, start, length)


@pytest.mark.parametrize("value", [1, 0x10, 0x80, 0xFF])
def test_every_bit_counts_in_a_large_buffer(value: int) -> None:
    size = 1024 * 1024
    memory = bytearray(size)
    assert is_zero(memory, 0, size)
    for place in (0, 1, 15, 16, 17, 4095, 4096, size // 2 + 13, size - 17, size - 16, size - 2, size - 1):
        memory[place] = value
        assert not is_zero(memory, 0, size), place
        assert is_zero(memory, 0, place)
        assert is_zero(memory, place + 1, size - place - 1)
        memory[place] = 0


def test_bytes_that_cancel_out_are_found() -> None:
    """A sum or an exclusive or over the buffer would be zero."""
    for pair in ((1, 0xFF), (0x55, 0x55)):
        memory = bytearray(4096)
        memory[100], memory[100 + 64] = pair
        assert not is_zero(memory, 0, 4096)


def test_random_buffers() -> None:
    for length in (1, 15, 100, 5000):
        memory = bytearray(os.urandom(length))
        memory[length // 2] |= 1
        assert not is_zero(memory, 0, length)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_python_buffers_of_every_kind(kind: type) -> None:
    assert ioutil_ext.is_zero(kind(bytes(1000)))
    assert not ioutil_ext.is_zero(kind(bytes(999) + b"x"))
    assert ioutil_ext.is_zero(kind(b""))


def test_a_part_of_a_memory_map() -> None:
    with mmap.mmap(-1, 8192) as memory:
        memory[100] = 1
        with memoryview(memory) as view:
            assert not ioutil_ext.is_zero(view)
            with view[101:] as part:
                assert ioutil_ext.is_zero(part)
