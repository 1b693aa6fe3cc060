# SPDX-License-Identifier: Apache-2.0
"""Lanes on an image that Python has: what fails, what is cancelled, and who has the memory."""

import asyncio
import ctypes
import errno
import mmap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from imageio_daemon.errors import Canceled, Error, Forbidden, NotFast, NotFound, OutOfRange, StorageError, Unavailable
from imageio_daemon.image.extents import Extent, ExtentList
from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from imageio_daemon.storage.backend import Backend, Memory, Operation
from imageio_daemon.storage.errand import Errand
from imageio_daemon.storage.external import External
from imageio_daemon.storage.nbd.backend import NbdBackend
from imageio_daemon.storage.nbd.handshake import Options
from imageio_daemon.transfers.ticket import Ticket
from ioutil_ext import ffi, lib
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, KiB, MiB, World
from tests.support.backends import ExternalBackend
from tests.support.fakenbd import Asked, FakeNbd, fake_nbd
from tests.support.images import pattern

READ, WRITE, FLUSH = Command.READ, Command.WRITE, Command.FLUSH
TRIM, ZERO = Command.TRIM, Command.WRITE_ZEROES
FAILED = "the server failed to perform the operation"
OUTSIDE = "the range is not inside the image"


@pytest.fixture
async def world(remote_world: MakeWorld) -> AsyncIterator[World]:
    async with remote_world() as running:
        yield running


# Failures


@pytest.mark.parametrize(
    ("error", "command", "told", "text"),
    [
        (StorageError(errno.ENOTCONN, "x", "y"), READ, ErrorNumber.EIO, FAILED),
        (StorageError(errno.ENOSPC, "x", "y"), WRITE, ErrorNumber.ENOSPC, FAILED),
        (StorageError(errno.EROFS, "x", "y"), WRITE, ErrorNumber.EPERM, FAILED),
        (StorageError(errno.ECANCELED, "x", "y"), READ, ErrorNumber.EIO, FAILED),
        (StorageError(errno.ENOTSUP, "x", "y"), ZERO, ErrorNumber.EIO, FAILED),
        (StorageError(5000, "x", "y"), READ, ErrorNumber.EIO, FAILED),
        (NotFast(), ZERO, ErrorNumber.ENOTSUP, "the storage has no fast way to zero this"),
        (OutOfRange("x", 5), READ, ErrorNumber.EINVAL, OUTSIDE),
        (OutOfRange("x", 5), WRITE, ErrorNumber.ENOSPC, OUTSIDE),
        (OutOfRange("x", 5), ZERO, ErrorNumber.ENOSPC, OUTSIDE),
        (NotFound("x"), READ, ErrorNumber.EIO, FAILED),
        (RuntimeError("a bug"), READ, ErrorNumber.EIO, FAILED),
    ],
)
async def test_error_means_the_same_as_in_python_and_the_connection_lives(
    world: World, error: Exception, command: Command, told: ErrorNumber, text: str
) -> None:
    client = await world.go()
    world.backend.fail({READ: "pread", WRITE: "pwrite", ZERO: "zero"}[command], error)
    flags = CommandFlag.FAST_ZERO if command == ZERO else 0
    result = await client.request(command, 4096, 4096, flags, data=bytes(4096) if command == WRITE else b"")
    assert (result.error, result.text) == (told, text)
    assert (await client.request(FLUSH)).error == 0


@pytest.mark.parametrize("error", [Forbidden("x"), Canceled(), Unavailable("x")])
async def test_refusal_ends_the_connection(world: World, error: Error) -> None:
    client = await world.go()
    world.backend.fail("pread", error)
    result = await client.request(READ, 0, 4096)
    assert (result.error, result.text) == (ErrorNumber.ESHUTDOWN, "the transfer has ended")
    assert await client.reader.read() == b""


async def test_failure_is_logged_with_what_python_knows(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = await world.go()
    world.backend.fail("pread", StorageError(errno.EIO, "NBD READ", "the server says 'no'"))
    for _ in range(2):
        await client.request(READ, 0, 4096)
    await world.until(lambda: caplog.text.count("storage failed: NBD READ: the server says 'no'") == 2)


async def test_failure_is_logged_after_a_refusal_that_was_none(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = await world.go()
    world.backend.fail("zero", NotFast())
    assert (await client.request(ZERO, 0, 4096, CommandFlag.FAST_ZERO)).error == ErrorNumber.ENOTSUP
    world.backend.fail("pread", StorageError(errno.EIO, "NBD READ", "the server says 'no'"))
    for count in (1, 2):
        assert (await client.request(READ, 0, 4096)).error == ErrorNumber.EIO
        await world.until(lambda: caplog.text.count("storage failed: ") == count)  # noqa: B023 - it is awaited
    assert "the server says 'no'" in caplog.text


@pytest.mark.parametrize("flags", [0, CommandFlag.REQ_ONE])
async def test_what_the_image_has_and_storage_did_not_tell_is_data(world: World, flags: int) -> None:
    """Nobody may take for zeros what nobody has looked at. Past the end of the image there are zeros."""

    async def none(*_: object) -> AsyncIterator[ExtentList]:
        yield ExtentList.of([Extent(0, MiB, zero=True)], 0)

    async def nothing(*_: object) -> ExtentList:
        return ExtentList.of((), 0)

    vars(world.backend).update(extents=none, extent_at=nothing)
    client = await world.go()
    extents = (await client.request(Command.BLOCK_STATUS, 0, SIZE, flags)).extents
    assert extents == ([(SIZE, 0)] if flags else [(MiB, 3), (SIZE - MiB, 0)])


async def test_bug_is_logged_with_its_traceback(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = await world.go()
    world.backend.fail("pread", RuntimeError("a bug"))
    await client.request(READ, 0, 4096)
    assert "read memory offset=0 length=4096 failed" in caplog.text
    assert "RuntimeError: a bug" in caplog.text


# Order


@pytest.mark.parametrize("flags", [0, CommandFlag.FUA])
async def test_write_does_not_overtake_a_trim(world: World, monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    world.disk = world.add("disk", sparse=True)  # the ticket that lets a trim do something
    async with nbd_world(world, monkeypatch) as server:
        clients = [await world.go(), await world.go()]
        await clients[0].request(READ, 0, 4096)  # opens the image
        external = cast(NbdBackend, world.disk.opened)._external
        loop, descriptor = asyncio.get_running_loop(), lib.iou_external_fd(external._handle)
        loop.remove_reader(descriptor)
        clients[0].send(TRIM, 0, 4096, flags)
        await world.until(lambda: len(world.engine.running()) == 1)
        clients[1].send(WRITE, 0, data=b"x" * 4096)
        await world.until(lambda: len(world.engine.running()) == 2)
        server.asked.clear()
        loop.add_reader(descriptor, external._look)  # which finds both
        for client in clients:
            assert {result.error for result in (await client.receive_all()).values()} == {0}
        assert [asked.header.command for asked in server.asked][:2] == [TRIM, WRITE]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_write_of_any_loop_does_not_overtake_one_of_a_lane(
    world: World, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    async with nbd_world(world, monkeypatch) as server:
        client = await world.go()
        await client.request(READ, 0, 4096)  # opens the image
        backend = cast(NbdBackend, world.disk.opened)
        loop, descriptor = asyncio.get_running_loop(), lib.iou_external_fd(backend._external._handle)
        loop.remove_reader(descriptor)  # as if the loop were busy
        client.send(WRITE, 0, data=b"1" * 4096)
        await world.until(lambda: len(world.engine.running()) == 1)
        buffer = await world.pool.acquire(4096)
        buffer.view[:4096] = b"2" * 4096

        async def write() -> None:
            await backend.pwrite(Operation(), buffer.slice(0, 4096), 0)

        await (asyncio.to_thread(asyncio.run, write()) if elsewhere else write())
        buffer.release()
        loop.add_reader(descriptor, backend._external._look)
        assert {result.error for result in (await client.receive_all()).values()} == {0}
        assert [asked.payload[:1] for asked in server.commands(WRITE)] == [b"1", b"2"]


# Durability


@pytest.mark.parametrize("length", [4096, 3 * MiB])
async def test_all_of_a_write_with_fua_is_durable(world: World, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    async with nbd_world(world, monkeypatch) as server:
        client = await world.go()
        assert (await client.request(WRITE, 4096, data=bytes(length), flags=CommandFlag.FUA)).error == 0
        writes = server.commands(WRITE)
        assert sum(asked.header.length for asked in writes) == length
        # FUA says something of its own request only (proto.md, "NBD_CMD_FLAG_FUA").
        assert server.commands(FLUSH) or all(asked.header.flags & CommandFlag.FUA for asked in writes)


# Who has the memory


class KeepingBackend(ExternalBackend):
    """Writes that end at once, and of which a transport keeps the memory until the test lets go of it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.kept: list[Memory] = []

    async def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> None:
        piece.buffer.retain()
        self.kept.append(piece)

    def let_go(self) -> None:
        while self.kept:
            self.kept.pop().buffer.release()


async def test_write_ends_when_nobody_has_its_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[KeepingBackend] = []

    async def open_backend(ticket: Ticket) -> Backend:
        made.append(KeepingBackend(cast(Backend, world.backend)))
        return cast(Backend, made[0])

    monkeypatch.setattr(world.disk._image, "_open_backend", open_backend)
    client = await world.go()
    client.send(WRITE, 0, data=b"x" * 4096)
    await world.until(lambda: made[0].kept)
    assert (await client.request(READ, 0, 4096)).error == 0  # others go on
    assert made[0].kept[0].view == b"x" * 4096
    made[0].let_go()
    assert next(iter((await client.receive_all()).values())).error == 0


async def test_lane_that_is_cut_cancels_and_waits_for_the_end(world: World) -> None:
    assert world.lanes is not None
    client = await world.go()
    held = world.backend.hold("pwrite")
    client.send(WRITE, 0, data=b"x" * 4096)
    await held.reached.wait()
    (lane,) = world.lanes.alive
    lane.abort()
    await world.until(lambda: world.external.interrupts)
    assert lane.running == 1
    held.release()
    await world.until(lambda: not world.lanes or not world.lanes.alive)
    assert not any(world.content[:4096])  # it was cancelled before it wrote


async def test_removed_ticket_cancels_what_runs_and_waits_for_the_end(world: World) -> None:
    client = await world.go()
    held = world.backend.hold("pread")
    client.send(READ, 0, 4096)
    await held.reached.wait()
    world.disk.cancel()
    await world.until(lambda: world.external.interrupts > 1)  # once for what waits in the backend
    assert not world.disk.end.has_ended
    held.release()
    result = next(iter((await client.receive_all()).values()))
    assert result.error == ErrorNumber.ESHUTDOWN
    await world.until(lambda: world.disk.end.has_ended)


# Memory that is taken away


class Revoked:
    """Memory for errands in C's place, which cannot be used any more when the errand has ended: who does is killed."""

    def __init__(self) -> None:
        self.count = 0
        self._maps: dict[int, tuple[Any, mmap.mmap]] = {}

    def begin(self, errand: Any) -> None:
        if errand.view:
            shadow = mmap.mmap(-1, len(errand.view))
            shadow[:] = errand.view
            self._maps[id(errand)] = errand.view, shadow
            errand.view = memoryview(shadow)

    def end(self, errand: Any) -> None:
        if not errand.view:
            return
        view, shadow = self._maps.pop(id(errand))
        if errand.kind in (lib.IOU_READ, lib.IOU_EXTENTS):
            view[:] = shadow[:]
        address = ffi.cast("uintptr_t", ffi.from_buffer(shadow))
        assert _mprotect(int(address), len(shadow)) == 0
        self.count += 1


def _mprotect(address: int, length: int) -> int:
    return int(ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), 0))


@pytest.fixture
def revoked(monkeypatch: pytest.MonkeyPatch) -> Revoked:
    revoked = Revoked()
    begin, end = Errand.__init__, External.errand_ended

    def init(errand: Any, *args: Any) -> None:
        begin(errand, *args)
        revoked.begin(errand)

    def ended(self: External, errand: Any) -> None:
        revoked.end(errand)
        end(self, errand)

    monkeypatch.setattr(Errand, "__init__", init)
    monkeypatch.setattr(External, "errand_ended", ended)
    return revoked


@asynccontextmanager
async def nbd_world(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeNbd]:
    """Let the image be one of a server that does what the test wants."""
    async with fake_nbd() as server:
        server.size = SIZE
        await server.start()
        options = Options(dirty=False, context=None, timeout=10, greeting_timeout=10)

        async def open_backend(ticket: Ticket) -> Backend:
            return await NbdBackend.open(server.address, options, connections=1, writable=True)

        monkeypatch.setattr(world.disk._image, "_open_backend", open_backend)
        yield server


Answer = Callable[[FakeNbd, Asked], bytes | None]


def _hang_up(server: FakeNbd, asked: Asked) -> bytes | None:
    server.hang_up()
    return None


def _late(server: FakeNbd, asked: Asked) -> bytes | None:
    asyncio.get_running_loop().call_later(0.01, server.reply, asked)
    return None


def _no(server: FakeNbd, asked: Asked) -> bytes | None:
    return server.failure(asked, ErrorNumber.EIO)


def _early(server: FakeNbd, asked: Asked) -> bytes | None:
    return server.success(asked)


@pytest.mark.parametrize("answer", [_hang_up, _late, _no, _early])
@pytest.mark.parametrize("leaves", [False, True])
async def test_no_transport_uses_memory_that_was_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch, revoked: Revoked, answer: Answer, *, leaves: bool
) -> None:
    async with nbd_world(world, monkeypatch) as server:
        client = await world.go()
        count = 0

        async def answered(asked: Asked) -> bytes | None:
            nonlocal count
            count += 1
            return answer(server, asked) if count % 3 == 0 else server.success(asked)

        server.answer = answered
        for i in range(12):
            length = (4 * KiB, 300 * KiB, 2 * MiB)[i % 3]
            client.send(WRITE, i * 100 * KiB, data=pattern(length))
            client.send(READ, i * 100 * KiB, length)
        await client.writer.drain()
        if leaves:
            client.writer.transport.abort()
        else:
            results = await client.receive_all()
            assert len(results) == 24
            assert {result.error for result in results.values()} <= {0, ErrorNumber.EIO}
        await world.rest()
        assert revoked.count
        assert server.asked
