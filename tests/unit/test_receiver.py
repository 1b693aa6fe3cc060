# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from imageio_daemon.errors import PeerGone
from imageio_daemon.frontends.http.receiver import Receiver


class Socket:
    """The socket's side of a receiver: holds reading, and reads into what the receiver says."""

    def __init__(self, length: int) -> None:
        self.held = False
        self.receiver = Receiver(length, hold=self._hold, release=self._release)

    def _hold(self) -> None:
        self.held = True

    def _release(self) -> None:
        self.held = False

    def read(self, data: bytes) -> bytes:
        """Bring bytes as a connection does, and return those that are not the body's."""
        while data:
            target = self.receiver.target
            if target is None:
                return self.receiver.feed(data)
            count = min(len(data), len(target))
            target[:count] = data[:count]
            self.receiver.updated(count)
            data = data[count:]
        return b""


async def waiting(receiver: Receiver, memory: bytearray) -> "asyncio.Task[int]":
    task = asyncio.create_task(receiver.readinto(memoryview(memory)))
    await asyncio.sleep(0)
    return task


async def test_bytes_go_straight_into_the_readers_memory() -> None:
    socket, memory = Socket(6), bytearray(6)
    task = await waiting(socket.receiver, memory)
    socket.read(b"abc")
    assert memory == b"abc\0\0\0"
    socket.read(b"def")
    assert await task == 6
    assert memory == b"abcdef"
    assert socket.receiver.ended


async def test_bytes_that_nobody_waits_for_are_kept_and_reading_is_held() -> None:
    socket, memory = Socket(6), bytearray(6)
    socket.read(b"abc")
    assert socket.held
    assert not socket.receiver.ended
    task = await waiting(socket.receiver, memory)
    assert not socket.held
    socket.read(b"def")
    await task
    assert memory == b"abcdef"


async def test_reading_is_held_from_a_full_memory_to_the_next_reader() -> None:
    socket = Socket(4)
    task = await waiting(socket.receiver, bytearray(3))
    socket.read(b"abc")
    assert socket.held
    await task
    assert socket.held
    task = await waiting(socket.receiver, bytearray(3))
    assert not socket.held
    socket.read(b"d")
    assert not socket.held, "the body has ended"
    assert await task == 1


async def test_what_was_kept_is_read_in_pieces() -> None:
    socket = Socket(5)
    socket.read(b"abcde")
    pieces = []
    while not socket.receiver.ended:
        memory = bytearray(2)
        pieces.append(bytes(memory[: await socket.receiver.readinto(memoryview(memory))]))
    assert pieces == [b"ab", b"cd", b"e"]
    assert not socket.held


async def test_bytes_behind_the_body_are_not_its() -> None:
    socket, memory = Socket(3), bytearray(3)
    assert socket.read(b"abcGET /") == b"GET /"
    assert await socket.receiver.readinto(memoryview(memory)) == 3


async def test_memory_is_never_larger_than_the_body_that_is_left() -> None:
    socket, memory = Socket(3), bytearray(10)
    task = await waiting(socket.receiver, memory)
    assert socket.read(b"abcdef") == b"def"
    assert await task == 3


async def test_more_bytes_before_the_reader_wakes_are_kept() -> None:
    socket, memory = Socket(6), bytearray(3)
    task = await waiting(socket.receiver, memory)
    socket.read(b"abcdef")
    assert socket.held
    assert await task == 3
    assert memory == b"abc"
    assert await socket.receiver.readinto(memoryview(memory)) == 3
    assert memory == b"def"


async def test_reader_that_gives_up_takes_its_memory_back_at_once() -> None:
    socket, memory = Socket(6), bytearray(6)
    task = await waiting(socket.receiver, memory)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    socket.read(b"abc")
    assert memory == bytes(6)


async def test_body_that_will_not_come_fails_who_waits_and_who_asks_later() -> None:
    socket, memory = Socket(6), bytearray(6)
    task = await waiting(socket.receiver, memory)
    socket.receiver.fail(PeerGone("gone"))
    with pytest.raises(PeerGone):
        await task
    with pytest.raises(PeerGone):
        await socket.receiver.readinto(memoryview(memory))


async def test_body_that_was_complete_before_the_failure_is_read() -> None:
    socket, memory = Socket(3), bytearray(3)
    socket.read(b"abc")
    socket.receiver.fail(PeerGone("gone"))
    assert await socket.receiver.readinto(memoryview(memory)) == 3


async def test_nothing_is_read_of_an_empty_body() -> None:
    assert await Socket(0).receiver.readinto(memoryview(bytearray(3))) == 0
