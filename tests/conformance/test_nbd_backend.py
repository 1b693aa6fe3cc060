# SPDX-License-Identifier: Apache-2.0
"""What only the NBD backend does: connections and segments, and servers that leave, lie or refuse."""

import asyncio
import errno
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import uvloop

from imageio_daemon.errors import Canceled, CannotFlush, NotFound, OutOfRange, ServerGone, StorageError, Unusable
from imageio_daemon.image.extents import Extent
from imageio_daemon.nbdproto.constants import (
    BASE_ALLOCATION,
    DIRTY_BITMAP,
    Chunk,
    Command,
    CommandFlag,
    ErrorNumber,
    ExportFlag,
    Reply,
)
from imageio_daemon.nbdproto.option_payloads import BlockSizes
from imageio_daemon.net.tls_contexts import client_tls
from imageio_daemon.storage import backend as backends
from imageio_daemon.storage.backend import Context
from imageio_daemon.storage.buffers import BufferPool
from imageio_daemon.storage.durable import DurableRecord
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.nbd import backend as nbd_warm_up
from imageio_daemon.storage.nbd import client as nbd_client
from imageio_daemon.storage.nbd import client_handshake, nbd_session
from imageio_daemon.storage.nbd.backend import WARM_UP, NbdBackend
from imageio_daemon.storage.nbd.client_handshake import ClientHandshake, ConnectOptions
from imageio_daemon.storage.operation import Operation, ZeroMethod
from imageio_daemon.units import GiB, KiB, MiB, TiB
from imageio_daemon.urls.nbd import NbdAddress, parse
from ioutil_ext import lib
from tests.support.backends import extents_of
from tests.support.changes import pwrite, trim, zero
from tests.support.daemon import Certificates
from tests.support.fakenbd import Asked, FakeNbd, fake_nbd
from tests.support.nbd_payloads import pack_extents
from tests.support.nbdservers import make_qcow2, nbdkit, qemu_nbd
from tests.support.polling import SOON, eventually, eventually_async

from .test_backend import read, write

OPTIONS = ConnectOptions(dirty=False, context=None, timeout=10, greeting_timeout=10)

#: Bytes of a segment: all reads and writes of one use one connection (ioutil_ext/nbd_client/rounds.h).
SEGMENT = 128 * MiB

Open = Callable[..., Awaitable[NbdBackend]]


@pytest.fixture
async def server() -> AsyncIterator[FakeNbd]:
    async with fake_nbd() as server:
        yield server


@pytest.fixture
async def open_nbd(engine: Engine) -> AsyncIterator[Open]:
    """Open backends that are closed after the test."""
    made: list[NbdBackend] = []

    async def open_backend(
        where: FakeNbd | str, *, connections: int = 1, writable: bool = True, options: ConnectOptions = OPTIONS
    ) -> NbdBackend:
        if isinstance(where, FakeNbd):
            await where.start()
        address = where.address if isinstance(where, FakeNbd) else parse(where)
        made.append(await NbdBackend.open(engine, address, options, connections=connections, writable=writable))
        return made[-1]

    yield open_backend
    for backend in made:
        await backend.close()


def answering(server: FakeNbd, command: Command, error: int) -> None:
    """Let the server answer a command with an error."""

    async def answer(asked: Asked) -> bytes:
        return server.failure(asked, error) if asked.header.command == command else server.success(asked)

    server.answer = answer


def is_alive(backend: NbdBackend) -> bool:
    """Tell whether there is a session that takes requests."""
    return bool(backend._client.state.life == lib.IOU_NBD_ALIVE)


async def nothing(_: Asked) -> None:
    """Answer never."""


def all_but_the_first(server: FakeNbd) -> Callable[[Asked], Awaitable[bytes | None]]:
    """Answer what comes after the first request."""

    async def answer(asked: Asked) -> bytes | None:
        return None if asked is server.asked[0] else server.success(asked)

    return answer


# Connections and segments


async def test_segments_have_their_connections_and_requests_end_at_their_borders(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    segment = SEGMENT
    server.size = 8 * segment
    backend = await open_nbd(server, connections=3)
    for start in range(0, 8 * segment, segment):
        await write(backend, pool, max(0, start - 4096), b"x" * 8192)
        await read(backend, pool, max(0, start - 4096), 8192)
    owners: dict[int, set[int]] = {}
    for asked in server.asked:
        offset, length = asked.range
        assert offset // segment == (offset + length - 1) // segment
        owners.setdefault(offset // segment, set()).add(asked.connection)
    assert all(len(found) == 1 for found in owners.values())
    assert set.union(*owners.values()) == {0, 1, 2}


async def test_flush_goes_through_every_connection_after_the_writes(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    backend = await open_nbd(server, connections=3)
    await write(backend, pool, 0, b"x")
    await backend.flush(Operation())
    flushes = server.commands(Command.FLUSH)
    assert sorted(asked.connection for asked in flushes) == [0, 1, 2]
    assert server.asked.index(flushes[0]) > server.asked.index(server.commands(Command.WRITE)[0])


async def test_connections_that_are_not_greeted_are_done_without(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nbd_session, "GREETING_TIMEOUT", 0.05)
    server.greeted = 1
    server.size = 4 * SEGMENT
    backend = await open_nbd(server, connections=4)
    await write(backend, pool, 2 * SEGMENT, b"x")
    await backend.flush(Operation())
    assert server.connections == 4
    assert {asked.connection for asked in server.asked} == {0}


async def test_an_open_that_is_cancelled_leaves_no_connection(server: FakeNbd, open_nbd: Open) -> None:
    server.greeted = 2
    opening = asyncio.ensure_future(open_nbd(server, connections=3))
    await eventually_async(lambda: server.connections == 3)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await eventually_async(lambda: server.ended == 3)


async def test_an_open_whose_session_cannot_begin_leaves_nothing(
    engine: Engine, server: FakeNbd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invalid(session: nbd_session.Session) -> object:
        told, kept = for_c(session)
        told.count = 0
        return told, kept

    for_c = nbd_session.Session.for_c
    monkeypatch.setattr(nbd_session.Session, "for_c", invalid)
    await server.start()
    fds = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageError, match="begin a session"):
        await NbdBackend.open(engine, server.address, OPTIONS, connections=2, writable=True)
    await eventually_async(lambda: server.ended == 2)
    await eventually_async(lambda: len(os.listdir("/proc/self/fd")) == fds)


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "default"])
def test_an_open_that_is_cancelled_in_the_moment_of_connecting_ends_as_such(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    class CanceledThen(ClientHandshake):
        def __init__(
            self, address: NbdAddress, options: ConnectOptions, sock: socket.socket, only: Sequence[str]
        ) -> None:
            super().__init__(address, options, sock, only)
            canceled[0].cancel()

    async def connect(address: NbdAddress) -> object:
        canceled.append(asyncio.ensure_future(client_handshake.connect(address, OPTIONS)))
        return await canceled[0]

    canceled: list[asyncio.Future[client_handshake.Connection]] = []
    monkeypatch.setattr(client_handshake, "ClientHandshake", CanceledThen)
    with nbdkit("memory", "1M") as kit, asyncio.Runner(loop_factory=new_loop) as runner:
        with pytest.raises(asyncio.CancelledError):
            runner.run(connect(parse(kit.url)))
        eventually(lambda: kit.connections() == 0, "the connection is closed")


async def test_qemu_nbd_that_serves_one_connection_is_served_by_one(
    open_nbd: Open, pool: BufferPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nbd_session, "GREETING_TIMEOUT", 0.2)
    image = make_qcow2(tmp_path / "image", MiB)
    with qemu_nbd(image, "qcow2", "--shared=1") as qemu:
        backend = await open_nbd(qemu.url, connections=4)
        await write(backend, pool, 1000, b"hello")
        assert await read(backend, pool, 1000, 5) == b"hello"
        await backend.close()


async def test_connections_that_disagree_are_not_used(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.size = 4 * SEGMENT
    server.later_size = server.size - 512
    backend = await open_nbd(server, connections=2)
    assert backend.info.size == 4 * SEGMENT
    await read(backend, pool, SEGMENT, 10)
    assert {asked.connection for asked in server.commands(Command.READ)} == {0}


@pytest.mark.parametrize(("multi", "most"), [(True, 2**32), (False, SEGMENT)])
async def test_zeroing_is_as_long_as_the_server_takes(server: FakeNbd, open_nbd: Open, multi: bool, most: int) -> None:
    server.size = 10 * GiB
    server.flags |= ExportFlag.CAN_MULTI_CONN if multi else 0
    backend = await open_nbd(server, connections=2)
    await backend.zero(Operation(), 0, 10 * GiB, allocate=False)
    lengths = [asked.header.length for asked in server.commands(Command.WRITE_ZEROES)]
    assert sum(lengths) == 10 * GiB
    assert most - MiB < max(lengths) <= most


async def test_zeroing_with_extended_headers_is_one_request(server: FakeNbd, open_nbd: Open) -> None:
    server.size, server.extended = 100 * GiB, True
    backend = await open_nbd(server)
    op = Operation()
    assert await backend.zero(op, 4096, 99 * GiB, allocate=True) is ZeroMethod.REMOTE
    (asked,) = server.commands(Command.WRITE_ZEROES)
    assert (asked.range, asked.header.flags) == ((4096, 99 * GiB), CommandFlag.NO_HOLE)
    assert op.done == 99 * GiB


# Many bytes


async def test_a_server_on_this_host_is_warmed_up_with_zeros(server: FakeNbd, open_nbd: Open) -> None:
    server.size = 2 * WARM_UP
    await open_nbd(server)
    await eventually_async(lambda: len(server.asked) == 2)
    assert [asked.range for asked in server.asked] == [(0, WARM_UP)] * 2
    assert [asked.header.command for asked in server.asked] == [Command.BLOCK_STATUS, Command.READ]


async def test_a_server_that_refuses_to_be_warmed_up_is_used(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.size = 2 * WARM_UP
    answering(server, Command.READ, ErrorNumber.EIO)
    backend = await open_nbd(server)
    await eventually_async(lambda: len(server.commands(Command.READ)) == 1)
    await write(backend, pool, 0, b"x")


async def test_data_is_not_read_to_warm_a_server_up(server: FakeNbd, open_nbd: Open) -> None:
    server.size = 2 * WARM_UP

    async def data_at_the_end(asked: Asked) -> bytes:
        if asked.header.command != Command.BLOCK_STATUS:
            return server.success(asked)
        return server.chunk(asked, Chunk.BLOCK_STATUS, pack_extents(10, [WARM_UP - 4096, 4096], [3, 0], extended=False))

    server.answer = data_at_the_end
    backend = await open_nbd(server)
    await eventually_async(lambda: server.asked)
    await backend.close()
    assert not server.commands(Command.READ)


@pytest.mark.parametrize("command", [Command.BLOCK_STATUS, Command.READ])
async def test_closing_does_not_wait_for_a_server_that_does_not_answer_its_warm_up(
    server: FakeNbd, open_nbd: Open, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    async def all_but_one(asked: Asked) -> bytes | None:
        return None if asked.header.command == command else server.success(asked)

    monkeypatch.setattr(nbd_warm_up, "CLOSE_TIMEOUT", 0.05)
    server.size, server.answer = 2 * WARM_UP, all_but_one
    backend = await open_nbd(server)
    await eventually_async(lambda: server.commands(command))
    async with asyncio.timeout(SOON):
        await backend.close()
    await eventually_async(lambda: server.ended == 1)


async def test_a_server_that_answers_its_warm_up_late_gets_a_goodbye(server: FakeNbd, open_nbd: Open) -> None:
    async def late(asked: Asked) -> bytes:
        if asked.header.command == Command.READ:
            await released.wait()
        return server.success(asked)

    released = asyncio.Event()
    server.size, server.answer = 2 * WARM_UP, late
    backend = await open_nbd(server)
    await eventually_async(lambda: server.commands(Command.READ))
    closing = asyncio.ensure_future(backend.close())
    released.set()
    await closing
    await eventually_async(lambda: server.commands(Command.DISC))


async def test_a_warm_up_that_is_answered_while_the_image_is_closed_asks_no_more(
    server: FakeNbd, open_nbd: Open, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close(client: nbd_client.NbdClient, wait: float) -> None:
        """Let the loop see the end of the session before the answer."""
        loop.remove_reader(fd)
        held.release()
        await eventually_async(lambda: engine.load().busy == 0)
        await client_close(client, wait)

    def read_into(*_: object) -> Awaitable[object]:
        read.append(backend.name)  # C would use memory that was freed
        raise Canceled

    read: list[str] = []
    loop, client_close = asyncio.get_running_loop(), nbd_client.NbdClient.close
    monkeypatch.setattr(nbd_client.NbdClient, "close", close)
    monkeypatch.setattr(NbdBackend, "read_into", read_into)
    monkeypatch.setattr(nbd_warm_up, "CLOSE_TIMEOUT", 0.05)
    server.size, held = 2 * WARM_UP, server.hold_back(Command.BLOCK_STATUS)
    backend = await open_nbd(server)
    await eventually_async(lambda: server.commands(Command.BLOCK_STATUS))
    queue = engine._queue
    assert queue is not None
    assert backend._warm_up is not None
    fd = lib.iou_queue_fd(queue._queue)
    await backend.close()
    loop.add_reader(fd, queue._reap)
    await backend._warm_up._task
    assert not read


async def test_a_session_that_died_is_not_opened_again_to_warm_the_server_up(server: FakeNbd, open_nbd: Open) -> None:
    server.size, server.greeted = 2 * WARM_UP, 1
    opening = asyncio.ensure_future(open_nbd(server, connections=2))
    await eventually_async(lambda: server.connections == 2)
    server.greeted = 1000
    server.hang_up()  # before the session is complete
    backend = await opening
    await backend.flush(Operation())  # opens the next one
    assert {asked.header.command for asked in server.asked} == {Command.FLUSH}


# Block sizes


async def test_the_largest_payload_is_kept_to(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.sizes = BlockSizes(1, 4096, 64 * KiB)
    backend = await open_nbd(server)
    await write(backend, pool, 100, b"x" * 300 * KiB)
    await read(backend, pool, 100, 300 * KiB)
    assert max(asked.header.length for asked in server.asked) == 64 * KiB


async def test_requests_are_whole_blocks_where_others_are_not_taken(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    server.sizes = BlockSizes(4096, 4096, MiB)
    backend = await open_nbd(server)
    op = Operation()
    await write(backend, pool, 100, b"x" * 10000)
    await read(backend, pool, 5000, 100)
    await backend.zero(op, 4095, 10000, allocate=True)
    await trim(backend, Operation(), 1, 10000)
    assert all(asked.header.offset % 4096 == 0 and asked.header.length % 4096 == 0 for asked in server.asked)
    assert op.done == 10000
    assert server.commands(Command.TRIM)[0].range == (4096, 4096)
    first = server.commands(Command.WRITE)[0]
    assert first.payload == bytes(100) + b"x" * 3996


async def test_writers_of_one_block_wait_for_each_other(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.sizes = BlockSizes(4096, 4096, MiB)
    backend = await open_nbd(server)
    await asyncio.gather(write(backend, pool, 0, b"a"), write(backend, pool, 1, b"b"))
    commands = [asked.header.command for asked in server.asked]
    assert commands == [Command.READ, Command.WRITE, Command.READ, Command.WRITE]


@pytest.mark.parametrize("change", ["write", "zero", "trim"])
async def test_a_change_waits_for_an_earlier_one_that_overlaps_although_its_client_is_gone(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, change: str
) -> None:
    server.answer = all_but_the_first(server)
    backend, op = await open_nbd(server), Operation()
    buffer = await pool.acquire(4096)
    if change == "write":
        first = asyncio.ensure_future(pwrite(backend, op, buffer.slice(0, 4096), 0))
    elif change == "zero":
        first = asyncio.ensure_future(backend.zero(op, 0, 4096, allocate=False))
    else:
        first = asyncio.ensure_future(trim(backend, op, 0, 4096))
    buffer.release()
    await eventually_async(lambda: server.asked)
    first.cancel()
    op.cancel()
    backend.interrupt()
    later = asyncio.ensure_future(write(backend, pool, 4095, b"new"))
    await write(backend, pool, 4096 + 3, b"elsewhere")
    assert [asked.range for asked in server.asked[1:]] == [(4099, 9)]
    assert not later.done()
    assert op.in_storage
    server.reply(server.asked[0])
    await later
    assert server.asked[-1].payload == b"new"
    await eventually_async(lambda: not op.in_storage)
    assert not pool.in_use


async def test_what_was_cancelled_while_it_waited_is_not_asked_for(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    server.answer = all_but_the_first(server)
    backend, op = await open_nbd(server), Operation()
    first = asyncio.ensure_future(write(backend, pool, 0, b"old"))
    await eventually_async(lambda: server.asked)
    later = asyncio.ensure_future(backend.zero(op, 0, 4096, allocate=False))
    op.cancel()
    backend.interrupt()
    with pytest.raises(Canceled):  # at once, however long the first one takes
        await asyncio.wait_for(later, 5)
    assert not op.in_storage
    server.reply(server.asked[0])
    await first
    assert len(server.asked) == 1


async def test_a_change_that_was_not_answered_when_the_connection_ended_fails_every_flush(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    """It may be done after all, over what is written by then."""
    server.answer = nothing
    backend = await open_nbd(server)
    writing = asyncio.ensure_future(write(backend, pool, 0, b"old"))
    await eventually_async(lambda: server.asked)
    server.hang_up()
    with pytest.raises(ServerGone):
        await writing
    server.answer = None
    await write(backend, pool, 0, b"new")
    for _ in range(2):
        with pytest.raises(ServerGone, match="before all changes were flushed"):
            await backend.flush(Operation())


async def test_a_server_that_comes_back_with_other_blocks_is_refused(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    backend = await open_nbd(server)
    await server.stop()
    server.sizes = BlockSizes(4096, 4096, MiB)
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    with pytest.raises(ServerGone, match="another image"):
        await write(backend, pool, 0, b"x")


async def test_a_size_that_is_no_whole_blocks_is_refused(server: FakeNbd, open_nbd: Open) -> None:
    server.sizes, server.size = BlockSizes(4096, 4096, MiB), MiB + 512
    with pytest.raises(StorageError, match="whole blocks"):
        await open_nbd(server)


# What servers can do


async def test_not_supported_is_a_fault_where_nothing_fast_was_asked_for(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(server)
    answering(server, Command.WRITE_ZEROES, ErrorNumber.ENOTSUP)
    with pytest.raises(StorageError) as caught:
        await backend.zero(Operation(), 0, 4096, allocate=True)
    assert caught.value.errno == errno.EINVAL


async def test_zeros_are_written_where_the_server_cannot_zero(server: FakeNbd, open_nbd: Open) -> None:
    server.flags &= ~ExportFlag.SEND_WRITE_ZEROES
    server.size = 10 * MiB
    backend = await open_nbd(server)
    assert await zero(backend, Operation(), 1, 9 * MiB, allocate=False, fua=True) is ZeroMethod.WRITE
    written = server.commands(Command.WRITE)
    assert sum(asked.header.length for asked in written) == 9 * MiB
    assert not any(any(asked.payload) for asked in written)
    assert all(asked.header.flags == CommandFlag.FUA for asked in written)


async def test_few_zeros_are_written_once(server: FakeNbd, open_nbd: Open) -> None:
    server.flags &= ~ExportFlag.SEND_WRITE_ZEROES
    backend = await open_nbd(server)
    assert await backend.zero(Operation(), 0, 4096, allocate=False) is ZeroMethod.WRITE
    assert [asked.header.length for asked in server.commands(Command.WRITE)] == [4096]


async def test_fua_is_a_flush_where_the_server_has_none(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.flags &= ~ExportFlag.SEND_FUA
    backend = await open_nbd(server)
    buffer = await pool.acquire(4096)
    await pwrite(backend, Operation(), buffer.slice(0, 4096), 0, fua=True)
    buffer.release()
    await zero(backend, Operation(), 0, 4096, allocate=True, fua=True)
    commands = [asked.header.command for asked in server.asked]
    assert commands == [Command.WRITE, Command.FLUSH, Command.WRITE_ZEROES, Command.FLUSH]


async def test_nothing_is_sent_that_the_server_does_not_know(server: FakeNbd, open_nbd: Open) -> None:
    server.flags &= ~ExportFlag.SEND_TRIM
    backend = await open_nbd(server)
    await trim(backend, Operation(), 0, 4096)
    assert not server.asked


# Servers that cannot flush


async def test_a_server_that_cannot_flush_is_told_once_and_fails_each_flush(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, caplog: pytest.LogCaptureFixture
) -> None:
    server.flags &= ~ExportFlag.SEND_FLUSH
    backend = await open_nbd(server)
    assert not backend.info.can_flush
    await write(backend, pool, 0, b"x")
    for _ in range(2):
        with pytest.raises(CannotFlush):
            await backend.flush(Operation())
    assert not server.commands(Command.FLUSH)
    assert [record.levelname for record in caplog.records if "cannot flush" in record.message] == ["WARNING"]


async def test_a_server_that_cannot_flush_can_be_read_without_a_warning(
    server: FakeNbd, open_nbd: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server.flags &= ~ExportFlag.SEND_FLUSH
    await open_nbd(server, writable=False)
    assert "cannot flush" not in caplog.text


@pytest.mark.parametrize("fua", [True, False])
async def test_a_write_with_fua_fails_if_the_server_has_neither_fua_nor_flush(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, fua: bool
) -> None:
    server.flags &= ~ExportFlag.SEND_FLUSH
    server.flags &= ~(0 if fua else ExportFlag.SEND_FUA)
    backend = await open_nbd(server)
    if fua:
        await write(backend, pool, 0, b"x", fua=True)
        await zero(backend, Operation(), 0, 4096, allocate=True, fua=True)
        assert all(asked.header.flags & CommandFlag.FUA for asked in server.asked)
        return
    with pytest.raises(CannotFlush):
        await write(backend, pool, 0, b"x", fua=True)
    with pytest.raises(CannotFlush):
        await zero(backend, Operation(), 0, 4096, allocate=True, fua=True)


async def test_a_server_that_comes_back_and_can_flush_does_not_flush_what_it_lost(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    server.flags &= ~ExportFlag.SEND_FLUSH
    backend = await open_nbd(server)
    await write(backend, pool, 0, b"x")
    await server.stop()
    server.flags |= ExportFlag.SEND_FLUSH
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    with pytest.raises(ServerGone, match="before all changes were flushed"):
        await backend.flush(Operation())


async def test_a_read_only_export_is_not_opened_for_writing(server: FakeNbd, open_nbd: Open) -> None:
    server.flags |= ExportFlag.READ_ONLY
    with pytest.raises(StorageError) as caught:
        await open_nbd(server)
    assert caught.value.errno == errno.EROFS


async def test_a_read_only_export_is_opened_for_reading(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.flags |= ExportFlag.READ_ONLY
    backend = await open_nbd(server, writable=False)
    assert await read(backend, pool, 0, 10) == bytes(10)


@pytest.mark.parametrize(
    ("error", "expected"), [(ErrorNumber.ENOSPC, errno.ENOSPC), (ErrorNumber.EIO, errno.EIO), (4711, errno.EINVAL)]
)
@pytest.mark.parametrize("command", [Command.READ, Command.WRITE, Command.WRITE_ZEROES, Command.TRIM, Command.FLUSH])
async def test_errors_of_the_server_are_told(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, command: Command, error: int, expected: int
) -> None:
    backend = await open_nbd(server)
    answering(server, command, error)
    calls: dict[Command, Callable[[], Awaitable[object]]] = {
        Command.READ: lambda: read(backend, pool, 0, 10),
        Command.WRITE: lambda: write(backend, pool, 0, b"x"),
        Command.WRITE_ZEROES: lambda: backend.zero(Operation(), 0, 10, allocate=True),
        Command.TRIM: lambda: trim(backend, Operation(), 0, 4096),
        Command.FLUSH: lambda: backend.flush(Operation()),
    }
    with pytest.raises(StorageError) as caught:
        await calls[command]()
    assert caught.value.errno == expected


async def test_a_failed_flush_fails_for_ever(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(server)
    answering(server, Command.FLUSH, ErrorNumber.EIO)
    with pytest.raises(StorageError):
        await backend.flush(Operation())
    server.answer = None
    with pytest.raises(StorageError):
        await backend.flush(Operation())


@pytest.mark.parametrize("fua", [True, False])
async def test_a_change_with_fua_fails_after_a_failed_flush_as_a_flush_does(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, fua: bool
) -> None:
    server.flags &= ~(0 if fua else ExportFlag.SEND_FUA)
    server.refused[Command.FLUSH] = ErrorNumber.EIO
    backend = await open_nbd(server)
    with pytest.raises(StorageError):
        await backend.flush(Operation())
    server.refused.clear()
    changes: list[Callable[[bool], Awaitable[object]]] = [
        lambda fua: write(backend, pool, 0, b"x", fua=fua),
        lambda fua: zero(backend, Operation(), 0, 4096, allocate=True, fua=fua),
    ]
    for change in changes:
        with pytest.raises(StorageError, match="FLUSH"):
            await change(True)
        await change(False)


@pytest.mark.parametrize("flush", ["flush", "fua"])
async def test_a_flush_fails_if_another_one_has_failed_meanwhile(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, flush: str
) -> None:
    """A server tells a failure once, to one flush. With `fua`, the second one is that of a write."""
    server.flags &= ~ExportFlag.SEND_FUA
    backend, flushes = await open_nbd(server), server.hold_back(Command.FLUSH)
    first = asyncio.ensure_future(backend.flush(Operation()))
    await eventually_async(lambda: len(flushes.asked) == 1)
    second = asyncio.ensure_future(
        backend.flush(Operation()) if flush == "flush" else write(backend, pool, 0, b"x", fua=True)
    )
    await eventually_async(lambda: len(flushes.asked) == 2)
    server.refused[Command.FLUSH] = ErrorNumber.EIO
    server.reply(flushes.asked.pop(0))
    with pytest.raises(StorageError):
        await first
    del server.refused[Command.FLUSH]
    flushes.release()
    with pytest.raises(StorageError, match="FLUSH"):
        await second


async def test_a_flush_whose_reply_comes_after_that_of_a_failed_one_fails_in_any_order_of_threads(
    server: FakeNbd, open_nbd: Open
) -> None:
    backend, flushes = await open_nbd(server), server.hold_back(Command.FLUSH)
    running = [asyncio.ensure_future(backend.flush(Operation())) for _ in range(3)]
    await eventually_async(lambda: len(flushes.asked) == 3)
    first = flushes.asked.pop(0)
    server.held.clear()
    server.refused[Command.FLUSH] = ErrorNumber.EIO
    server.reply(first)
    del server.refused[Command.FLUSH]
    flushes.release()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(result, StorageError) for result in results)


@pytest.mark.parametrize("error", [ErrorNumber.EINVAL, ErrorNumber.EIO])
async def test_zeroing_with_fua_that_is_too_long_for_the_server_fails_no_flush(
    server: FakeNbd, open_nbd: Open, error: ErrorNumber
) -> None:
    async def refuse_long(asked: Asked) -> bytes:
        return server.failure(asked, error) if asked.header.length > MiB else server.success(asked)

    server.size, server.sizes, server.answer = 4 * MiB, BlockSizes(1, 4096, MiB), refuse_long
    backend = await open_nbd(server)
    if error == ErrorNumber.EINVAL:
        await zero(backend, Operation(), 0, 4 * MiB, allocate=False, fua=True)
        await backend.flush(Operation())
        return
    with pytest.raises(StorageError):
        await zero(backend, Operation(), 0, 4 * MiB, allocate=False, fua=True)
    with pytest.raises(StorageError, match="WRITE_ZEROES"):
        await backend.flush(Operation())


@pytest.mark.parametrize("command", [Command.WRITE, Command.WRITE_ZEROES])
@pytest.mark.parametrize("fua", [True, False])
async def test_flushing_fails_for_ever_after_a_failed_change_with_fua_only(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, command: Command, fua: bool
) -> None:
    backend = await open_nbd(server)
    answering(server, command, ErrorNumber.EIO)
    calls: dict[Command, Callable[[], Awaitable[object]]] = {
        Command.WRITE: lambda: write(backend, pool, 0, b"x", fua=fua),
        Command.WRITE_ZEROES: lambda: zero(backend, Operation(), 0, 4096, allocate=True, fua=fua),
    }
    with pytest.raises(StorageError):
        await calls[command]()
    server.answer = None
    if fua:
        with pytest.raises(StorageError, match=command.name):
            await backend.flush(Operation())
    else:
        await backend.flush(Operation())


async def test_a_range_outside_of_the_image_is_refused_without_asking(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    backend = await open_nbd(server)
    with pytest.raises(OutOfRange):
        await backend.zero(Operation(), server.size - 1, 2, allocate=True)
    assert not server.asked


# Extents


async def told(backend: NbdBackend, offset: int, length: int, context: Context = Context.ZERO) -> list[Extent]:
    return await extents_of(backend, offset, length, context)


@pytest.mark.parametrize("extended", [False, True])
async def test_extents_of_a_large_image(server: FakeNbd, open_nbd: Open, extended: bool) -> None:
    server.size, server.extended = TiB, extended
    backend = await open_nbd(server)
    assert await told(backend, 0, TiB) == [Extent(0, TiB, zero=True)]
    asked = [asked for asked in server.commands(Command.BLOCK_STATUS) if asked.header.length > WARM_UP]
    assert len(asked) == 1 if extended else len(asked) > 500


async def test_a_full_batch_is_followed_by_a_question_for_as_much(
    server: FakeNbd, open_nbd: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def alternate(asked: Asked) -> bytes:
        if asked.header.command != Command.BLOCK_STATUS:
            return server.success(asked)
        count = asked.header.length // (64 * KiB)
        payload = pack_extents(10, [64 * KiB] * count, [0, 3] * (count // 2), extended=False)
        return server.chunk(asked, Chunk.BLOCK_STATUS, payload)

    monkeypatch.setattr(backends, "EXTENTS_BATCH", 16)
    server.size, server.answer = 4 * MiB, alternate
    backend = await open_nbd(server)
    assert await told(backend, 0, 4 * MiB) == [
        Extent(start, 64 * KiB, zero=bool(start % (128 * KiB))) for start in range(0, 4 * MiB, 64 * KiB)
    ]
    assert [asked.range for asked in server.commands(Command.BLOCK_STATUS)] == [
        (0, 4 * MiB), (MiB, MiB), (2 * MiB, MiB), (3 * MiB, MiB)
    ]  # fmt: skip


async def test_one_extent_is_asked_for_as_such(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(server)
    found = await backend.list_extents(Operation(), 0, 1000, 1, lib.IOU_LAYERS)
    assert list(found) == [Extent(0, 1000, zero=True)]
    assert [asked.header.flags for asked in server.asked] == [CommandFlag.REQ_ONE]


async def test_a_status_of_a_part_of_a_block_is_asked_of_all_of_it(server: FakeNbd, open_nbd: Open) -> None:
    server.sizes = BlockSizes(4096, 4096, MiB)
    backend = await open_nbd(server)
    assert await told(backend, 100, 10000) == [Extent(100, 10000, zero=True)]
    assert server.asked[0].range == (0, 12288)


async def test_a_server_that_has_no_status_has_data_everywhere(open_nbd: Open) -> None:
    with nbdkit("--no-sr", "memory", "1M") as kit:
        backend = await open_nbd(kit.url)
        assert await told(backend, 0, MiB) == [Extent(0, MiB)]
        await backend.close()


async def test_nbdkit_bears_a_client_that_asks_for_almost_4_gib(open_nbd: Open) -> None:
    with nbdkit("memory", "8G") as kit:  # 1.32.5 ends itself if it is asked for 2^32 - 1 bytes
        backend = await open_nbd(kit.url)
        assert await told(backend, 0, 4 * GiB - 1) == [Extent(0, 4 * GiB - 1, zero=True)]
        await backend.close()


async def test_a_failed_status_is_told(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(server)
    answering(server, Command.BLOCK_STATUS, ErrorNumber.EIO)
    with pytest.raises(StorageError):
        await told(backend, 0, MiB)


async def test_the_backing_file_shows_through_holes(open_nbd: Open, tmp_path: Path) -> None:
    base, top = make_qcow2(tmp_path / "base", 4 * MiB), tmp_path / "top"
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write 0 1M", base], stdout=subprocess.DEVNULL)
    subprocess.check_call(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base, top])
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write 1M 1M", top], stdout=subprocess.DEVNULL)
    with qemu_nbd(top, "qcow2", "--allocation-depth") as qemu:
        backend = await open_nbd(qemu.url)
        assert await told(backend, 0, 4 * MiB) == [Extent(0, 2 * MiB), Extent(2 * MiB, 2 * MiB, zero=True, hole=True)]
        await backend.close()


async def test_dirty_extents_are_those_of_the_bitmap(open_nbd: Open, tmp_path: Path) -> None:
    image = make_qcow2(tmp_path / "image", 4 * MiB)
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write 0 1M", image], stdout=subprocess.DEVNULL)
    subprocess.check_call(["qemu-img", "bitmap", "--add", "-f", "qcow2", image, "b"])
    subprocess.check_call(
        ["qemu-io", "-f", "qcow2", "-c", "write 1M 1M", "-c", "write -z 3M 512k", image], stdout=subprocess.DEVNULL
    )
    with qemu_nbd(image, "qcow2", "--read-only", "--bitmap=b") as qemu:
        backend = await open_nbd(qemu.url, writable=False, options=OPTIONS._replace(dirty=True))
        assert backend.bitmaps() == ["qemu:dirty-bitmap:b"]
        assert await told(backend, 0, 4 * MiB, Context.DIRTY) == [
            Extent(0, MiB),
            Extent(MiB, MiB, dirty=True),
            Extent(2 * MiB, MiB, zero=True),
            Extent(3 * MiB, 512 * KiB, zero=True, dirty=True),
            Extent(3 * MiB + 512 * KiB, 512 * KiB, zero=True),
        ]
        other = await open_nbd(qemu.url, writable=False)
        with pytest.raises(NotFound):
            await told(other, 0, MiB, Context.DIRTY)
        await backend.close()
        await other.close()


# Contexts of connections


CHANGED = f"{DIRTY_BITMAP}b"
DIRTY = OPTIONS._replace(dirty=True)
#: What the connections of a session select of a server whose connections are coherent.
APART = [[BASE_ALLOCATION, CHANGED], [CHANGED], [BASE_ALLOCATION], [BASE_ALLOCATION]]


def with_bitmap(server: FakeNbd, flags: int = ExportFlag.CAN_MULTI_CONN) -> FakeNbd:
    server.contexts = (BASE_ALLOCATION, CHANGED)
    server.flags |= flags
    return server


def selected(server: FakeNbd) -> list[list[str]]:
    return sorted(server.selected.values(), key=APART.index)


def askers(server: FakeNbd) -> list[list[str]]:
    """Return what the connections had selected that were asked for block status."""
    return [server.selected[asked.connection] for asked in server.commands(Command.BLOCK_STATUS)]


async def test_connections_select_what_is_asked_for_apart(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(with_bitmap(server), connections=4, options=DIRTY)
    assert selected(server) == APART
    assert await told(backend, 0, MiB) == [Extent(0, MiB, zero=True)]
    assert await told(backend, 0, MiB, Context.DIRTY) == [Extent(0, MiB, zero=True, dirty=True)]
    assert askers(server) == [APART[2], APART[0]]


async def test_connections_select_all_contexts_unless_they_are_coherent(server: FakeNbd, open_nbd: Open) -> None:
    server.size = 4 * SEGMENT
    backend = await open_nbd(with_bitmap(server, 0), connections=2, options=DIRTY)
    assert selected(server) == [APART[0]] * 2
    assert await told(backend, 0, 2 * SEGMENT) == [Extent(0, 2 * SEGMENT, zero=True)]
    assert {asked.connection for asked in server.commands(Command.BLOCK_STATUS)} == {0, 1}


async def test_a_ticket_without_changes_selects_no_bitmap(server: FakeNbd, open_nbd: Open) -> None:
    await open_nbd(with_bitmap(server), connections=2)
    assert selected(server) == [[BASE_ALLOCATION]] * 2


@pytest.mark.parametrize("greeted", [1, 2, 3])
async def test_all_is_told_by_as_many_connections_as_there_are(
    server: FakeNbd, open_nbd: Open, monkeypatch: pytest.MonkeyPatch, greeted: int
) -> None:
    monkeypatch.setattr(nbd_session, "GREETING_TIMEOUT", 0.1)
    with_bitmap(server).greeted = greeted
    backend = await open_nbd(server, connections=3, options=DIRTY)
    assert await told(backend, 0, MiB) == [Extent(0, MiB, zero=True)]
    assert await told(backend, 0, MiB, Context.DIRTY) == [Extent(0, MiB, zero=True, dirty=True)]


async def test_a_connection_that_does_not_get_its_contexts_is_not_used(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    with_bitmap(server).without_contexts = frozenset({1, 2, 3})
    server.size = 4 * SEGMENT
    backend = await open_nbd(server, connections=4, options=DIRTY)
    await read(backend, pool, SEGMENT, 10)
    assert await told(backend, 0, MiB, Context.DIRTY) == [Extent(0, MiB, zero=True, dirty=True)]
    assert {asked.connection for asked in server.asked if asked.header.command != Command.DISC} == {0}


async def test_connections_that_are_made_again_select_the_same(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(with_bitmap(server), connections=4, options=DIRTY)
    await server.stop()
    server.selected.clear()
    await server.start()
    await eventually_async(lambda: backend._client.state.life != lib.IOU_NBD_ALIVE)
    assert await told(backend, 0, MiB, Context.DIRTY) == [Extent(0, MiB, zero=True, dirty=True)]
    assert selected(server) == APART


# Requests without data that are longer than a server likes


@pytest.mark.parametrize("error", [ErrorNumber.EINVAL, ErrorNumber.EOVERFLOW])
@pytest.mark.parametrize("command", [Command.WRITE_ZEROES, Command.TRIM])
async def test_request_that_a_server_finds_too_long_is_cut(
    server: FakeNbd, open_nbd: Open, error: ErrorNumber, command: Command
) -> None:
    async def refuse_long(asked: Asked) -> bytes:
        too_long = asked.header.command == command and asked.header.length > MiB
        return server.failure(asked, error) if too_long else server.success(asked)

    server.size, server.sizes, server.answer = 4 * MiB, BlockSizes(1, 4096, MiB), refuse_long
    backend = await open_nbd(server)
    for _ in range(2):
        if command == Command.TRIM:
            await trim(backend, Operation(), 4096, 3 * MiB)
        else:
            await backend.zero(Operation(), 4096, 3 * MiB, allocate=False)
    pieces = [(4096, MiB), (4096 + MiB, MiB), (4096 + 2 * MiB, MiB)]
    assert [asked.range for asked in server.commands(command)] == [(4096, 3 * MiB), *pieces, *pieces]


async def test_short_request_that_a_server_refuses_fails(server: FakeNbd, open_nbd: Open) -> None:
    async def refuse(asked: Asked) -> bytes:
        zeroes = asked.header.command == Command.WRITE_ZEROES
        return server.failure(asked, ErrorNumber.EINVAL) if zeroes else server.success(asked)

    server.size, server.sizes, server.answer = 4 * MiB, BlockSizes(1, 4096, MiB), refuse
    backend = await open_nbd(server)
    with pytest.raises(StorageError) as failure:
        await backend.zero(Operation(), 0, 4 * MiB, allocate=False)
    assert failure.value.errno == errno.EINVAL
    assert [asked.range for asked in server.commands(Command.WRITE_ZEROES)] == [(0, 4 * MiB), (0, MiB)]


# Servers that leave


async def test_a_server_that_vanishes_is_noticed(
    server: FakeNbd, open_nbd: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(address: NbdAddress, options: ConnectOptions) -> client_handshake.Connection:
        connection = await client_handshake.connect(address, options)
        connected.append(connection.sock.dup())
        return connection

    connected: list[socket.socket] = []
    monkeypatch.setattr(nbd_session, "connect", connect)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    await open_nbd(f"nbd:127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    (sock,) = connected
    tcp = socket.IPPROTO_TCP
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert [sock.getsockopt(tcp, option) for option in options] == [30, 10, 3, 120_000]
    sock.close()
    listener.close()


async def test_all_that_runs_fails_once_when_the_server_leaves_and_the_next_connects_again(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    server.answer = nothing
    backend = await open_nbd(server, connections=2)
    running_calls = [asyncio.create_task(read(backend, pool, i * 4096, 4096)) for i in range(10)]
    await eventually_async(lambda: len(server.asked) == 10)
    await server.stop()
    results = await asyncio.gather(*running_calls, return_exceptions=True)
    assert all(isinstance(result, ServerGone) for result in results)
    assert pool.in_use == 0
    with pytest.raises(ServerGone):
        await read(backend, pool, 0, 10)
    server.answer = None
    await server.start()
    assert await read(backend, pool, 0, 10) == bytes(10)
    await backend.flush(Operation())  # nothing was changed, so nothing is lost


async def test_all_that_wait_for_one_connection_fail_with_it(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    backend = await open_nbd(server)
    backend._client._options = OPTIONS._replace(timeout=0.2)
    await server.stop()
    await eventually_async(lambda: not is_alive(backend))
    server.greeted = 0
    await server.start()
    reads = [read(backend, pool, i * 4096, 4096) for i in range(10)]
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(result, ServerGone) for result in results)
    assert server.connections == 2  # the first one and one attempt
    with pytest.raises(ServerGone):
        await read(backend, pool, 0, 10)
    assert server.connections == 3


async def test_an_operation_that_was_cancelled_does_not_connect(server: FakeNbd, open_nbd: Open) -> None:
    backend = await open_nbd(server)
    await server.stop()
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    op = Operation()
    op.cancel()
    with pytest.raises(Canceled):
        await backend.flush(op)
    assert server.connections == 1


async def test_a_server_that_comes_back_with_another_size_is_refused(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    backend = await open_nbd(server)
    await server.stop()
    server.size *= 2
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    for _ in range(2):
        with pytest.raises(ServerGone, match="another image"):
            await read(backend, pool, 0, 10)
    server.size //= 2
    assert await read(backend, pool, 0, 10) == bytes(10)


async def test_a_server_that_comes_back_without_its_bitmaps_is_refused(server: FakeNbd, open_nbd: Open) -> None:
    server.contexts = (BASE_ALLOCATION, f"{DIRTY_BITMAP}b")
    backend = await open_nbd(server, options=OPTIONS._replace(dirty=True))
    await server.stop()
    server.contexts = (BASE_ALLOCATION,)
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    with pytest.raises(ServerGone, match="another image"):
        await told(backend, 0, MiB, Context.DIRTY)


@pytest.mark.parametrize("flushed", [True, False])
async def test_changes_that_were_lost_with_the_server_make_flushing_fail(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, flushed: bool
) -> None:
    backend = await open_nbd(server)
    await write(backend, pool, 0, b"x")
    if flushed:
        await backend.flush(Operation())
    await server.stop()
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    await write(backend, pool, 0, b"y")
    if flushed:
        await backend.flush(Operation())
        return
    for _ in range(2):
        with pytest.raises(ServerGone, match="before all changes were flushed"):
            await backend.flush(Operation())


async def test_a_change_may_be_lost_from_its_reply_on_although_its_writer_still_waits(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    server.sizes, server.answer = BlockSizes(1, 4096, 64 * KiB), all_but_the_first(server)
    backend = await open_nbd(server)
    writing = asyncio.ensure_future(write(backend, pool, 0, b"x" * 128 * KiB))
    await eventually_async(lambda: backend._client.state.unflushed)
    assert not writing.done()
    server.reply(server.asked[0])
    await writing
    await backend.flush(Operation())
    assert not backend._client.state.unflushed


async def test_a_write_with_fua_is_not_lost_with_the_server(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    backend = await open_nbd(server)
    buffer = await pool.acquire(4096)
    await pwrite(backend, Operation(), buffer.slice(0, 4096), 0, fua=True)
    buffer.release()
    await server.stop()
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    await backend.flush(Operation())


async def test_a_server_that_shuts_down_is_left_in_order(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    backend = await open_nbd(server)
    answering(server, Command.READ, ErrorNumber.ESHUTDOWN)
    with pytest.raises(ServerGone, match="shutting down"):
        await read(backend, pool, 0, 10)
    server.answer = None
    assert await read(backend, pool, 0, 10) == bytes(10)
    assert [asked.header.command for asked in server.asked] == [Command.READ, Command.DISC, Command.READ]


async def test_a_server_that_shuts_down_and_does_not_answer_is_left_in_time(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(asked: Asked) -> bytes | None:
        return server.failure(asked, ErrorNumber.ESHUTDOWN) if asked.header.offset else None

    monkeypatch.setattr(nbd_client, "DRAIN_TIMEOUT", 0.05)
    server.answer = answer
    backend = await open_nbd(server)
    reading = asyncio.ensure_future(read(backend, pool, 0, 10))
    await eventually_async(lambda: server.asked)
    with pytest.raises(ServerGone, match="shutting down"):
        await read(backend, pool, 4096, 10)
    server.answer = None
    assert await read(backend, pool, 0, 10) == bytes(10)
    with pytest.raises(ServerGone, match="shutting down"):
        await reading


async def test_a_change_that_a_leaving_server_does_not_answer_fails_every_flush(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be done after all, over what is written by then."""

    async def answer(asked: Asked) -> bytes | None:
        return None if asked.header.command == Command.WRITE else server.failure(asked, ErrorNumber.ESHUTDOWN)

    monkeypatch.setattr(nbd_client, "DRAIN_TIMEOUT", 0.05)
    server.answer = answer
    backend = await open_nbd(server)
    buffer = await pool.acquire(4096)
    writing = asyncio.ensure_future(pwrite(backend, Operation(), buffer.slice(0, 4096), 0))
    await eventually_async(lambda: server.asked)
    with pytest.raises(ServerGone, match="shutting down"):
        await read(backend, pool, 4096, 10)
    server.answer = None
    assert await read(backend, pool, 4096, 10) == bytes(10)
    with pytest.raises(ServerGone, match="shutting down"):
        await writing
    buffer.release()
    with pytest.raises(ServerGone, match="before all changes were flushed"):
        await backend.flush(Operation())


async def test_the_goodbye_is_the_last_word_and_waits_for_all_replies(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    answered = asyncio.Event()

    async def late(asked: Asked) -> bytes:
        await answered.wait()
        return server.success(asked)

    server.answer = late
    backend = await open_nbd(server)
    reading = asyncio.ensure_future(read(backend, pool, 0, 10))
    await eventually_async(lambda: server.asked)
    closing = asyncio.ensure_future(backend.close())
    done, _ = await asyncio.wait([reading, closing], timeout=0.05)
    assert not done
    answered.set()
    assert await reading == bytes(10)
    await closing
    await eventually_async(lambda: server.ended == 1)
    assert [asked.header.command for asked in server.asked] == [Command.READ, Command.DISC]
    assert not server.after_goodbye


async def test_nothing_is_begun_on_a_connection_that_is_being_left(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    """Its answer would come after the goodbye: it would be done, and told as failed, and each flush would fail."""
    server.sizes = BlockSizes(4096, 4096, MiB)

    async def answer(asked: Asked) -> bytes | None:
        return server.failure(asked, ErrorNumber.ESHUTDOWN) if asked.header.offset else None

    server.answer = answer
    backend = await open_nbd(server)
    writing = asyncio.ensure_future(write(backend, pool, 0, b"x"))
    await eventually_async(lambda: server.asked)
    with pytest.raises(ServerGone, match="shutting down"):
        await read(backend, pool, 4096, 4096)
    assert not is_alive(backend)
    server.answer = None
    reading = asyncio.ensure_future(read(backend, pool, 4096, 4096))
    await eventually_async(lambda: backend._client.state.wanted)
    server.reply(server.asked[0])  # the block of which the write has a part
    with pytest.raises(ServerGone, match="shutting down"):
        await writing
    await reading
    await backend.flush(Operation())
    commands = [asked.header.command for asked in server.asked]
    assert commands == [Command.READ, Command.READ, Command.DISC, Command.READ, Command.FLUSH]


async def test_a_server_that_breaks_the_protocol_is_left_at_once(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    async def garbage(_: Asked) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"

    server.answer = garbage
    backend = await open_nbd(server)
    with pytest.raises(ServerGone, match="begins with"):
        await read(backend, pool, 0, 10)
    server.answer = None
    assert await read(backend, pool, 0, 10) == bytes(10)


async def test_a_write_that_is_answered_before_it_was_sent_is_a_violation(
    server: FakeNbd, open_nbd: Open, pool: BufferPool
) -> None:
    server.size, server.most_read = 64 * MiB, MiB

    async def early(asked: Asked) -> bytes:
        return server.failure(asked, ErrorNumber.EINVAL)

    server.answer = early
    backend = await open_nbd(server)
    buffer = await pool.acquire(8 * MiB)
    with pytest.raises(ServerGone, match="not sent yet"):
        await pwrite(backend, Operation(), buffer.slice(0, 8 * MiB), 0)
    buffer.release()
    assert pool.in_use == 0


@pytest.mark.parametrize("reply", [Reply.ERR_SHUTDOWN, Reply.ERR_POLICY, Reply.ERR_PLATFORM])
async def test_a_refused_export_is_told_with_the_reason(server: FakeNbd, open_nbd: Open, reply: Reply) -> None:
    server.refusal = [(reply, b"not for you")]
    with pytest.raises(ServerGone, match=rf"{reply.name} .*not for you"):
        await open_nbd(server)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply.ERR_UNKNOWN, "does not have the export"),
        (Reply.ERR_TLS_REQD, "wants TLS"),
        (Reply.ERR_INVALID, "does not take"),
        (Reply.ERR_BLOCK_SIZE_REQD, "does not take"),
    ],
)
async def test_a_refusal_that_stays_is_for_the_manager(
    server: FakeNbd, open_nbd: Open, reply: Reply, told: str
) -> None:
    server.refusal = [(reply, b"not for you")]
    with pytest.raises(Unusable, match=rf"{reply.name} .*not for you") as refused:
        await open_nbd(server)
    assert told in refused.value.told
    assert "not for you" not in refused.value.told


async def test_a_refusal_of_a_server_that_was_there_may_pass(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    backend = await open_nbd(server)
    await server.stop()
    server.refusal = [(Reply.ERR_UNKNOWN, b"not yet")]
    await server.start()
    await eventually_async(lambda: not is_alive(backend))
    with pytest.raises(ServerGone, match="not yet"):
        await read(backend, pool, 0, 4096)
    server.refusal = None
    assert await read(backend, pool, 0, 4096) == bytes(4096)


async def test_a_server_that_does_not_greet_is_given_up(server: FakeNbd, open_nbd: Open) -> None:
    server.greeted = 0
    with pytest.raises(ServerGone, match="in time"):
        await open_nbd(server, options=OPTIONS._replace(timeout=0.1))


@pytest.mark.parametrize("address", ["nbd:unix:/nowhere/socket", "nbd://localhost:1/x"])
async def test_a_server_that_is_not_there_is_told(open_nbd: Open, address: str) -> None:
    with pytest.raises(ServerGone):
        await open_nbd(address)


# Cancellation


async def test_a_buffer_is_in_use_until_the_reply(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def late(asked: Asked) -> bytes:
        await waiting
        return server.success(asked)

    server.answer = late
    backend = await open_nbd(server)
    ended: list[Operation] = []
    op = Operation(on_end=ended.append)
    buffer = await pool.acquire(4096)
    task = asyncio.ensure_future(backend.pread(op, buffer.slice(0, 4096), 0))
    await eventually_async(lambda: len(server.asked) == 1)
    task.cancel()
    op.cancel()
    backend.interrupt()
    buffer.release()
    op.release()
    await asyncio.sleep(0)
    assert pool.in_use > 0
    assert not ended
    waiting.set_result(None)
    await eventually_async(lambda: pool.in_use == 0)
    assert ended == [op]


async def test_a_buffer_is_free_when_the_connection_is_lost(server: FakeNbd, open_nbd: Open, pool: BufferPool) -> None:
    server.answer = nothing
    backend = await open_nbd(server)
    buffer = await pool.acquire(4096)
    future = asyncio.ensure_future(backend.pread(Operation(), buffer.slice(0, 4096), 0))
    await eventually_async(lambda: len(server.asked) == 1)
    future.cancel()
    buffer.release()
    await server.stop()
    await eventually_async(lambda: pool.in_use == 0)


async def test_what_was_not_sent_yet_ends_when_it_is_cancelled(server: FakeNbd, open_nbd: Open, engine: Engine) -> None:
    pool = BufferPool(64 * MiB)
    server.size = 64 * MiB
    server.hold = asyncio.Event()
    backend = await open_nbd(server)
    first, second = await pool.acquire(16 * MiB), await pool.acquire(MiB)
    sending = asyncio.ensure_future(pwrite(backend, Operation(), first.slice(0, 16 * MiB), 0))
    op = Operation()
    queued = asyncio.ensure_future(pwrite(backend, op, second.slice(0, MiB), 32 * MiB))
    await eventually_async(lambda: engine.load().busy == 3)  # and that of the warm-up
    op.cancel()
    backend.interrupt()
    with pytest.raises(Canceled):
        await queued
    assert not sending.done()
    await server.stop()
    server.hold.set()
    with pytest.raises(ServerGone):
        await sending
    first.release()
    second.release()


async def test_flush_that_failed_on_one_connection_fails_for_ever_although_it_was_cancelled_on_another(
    server: FakeNbd, open_nbd: Open
) -> None:
    pool = BufferPool(64 * MiB)
    server.size = 64 * MiB
    server.hold = asyncio.Event()
    answering(server, Command.FLUSH, ErrorNumber.EIO)
    backend, op = await open_nbd(server, connections=2), Operation()
    buffer = await pool.acquire(16 * MiB)
    sending = asyncio.ensure_future(pwrite(backend, Operation(), buffer.slice(0, 16 * MiB), 0))
    flushing = asyncio.ensure_future(backend.flush(op))
    await eventually_async(lambda: len(server.readers[1]._buffer) == 28)  # type: ignore[attr-defined]
    op.cancel()
    backend.interrupt()
    server.hold.set()
    with pytest.raises(StorageError):
        await flushing
    await sending
    buffer.release()
    server.answer = None
    with pytest.raises(StorageError):
        await backend.flush(Operation())


# The record of what is durable


async def test_change_is_asked_for_after_its_removal_from_the_record(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord
) -> None:
    told: list[list[tuple[int, int]]] = []

    async def answer(asked: Asked) -> bytes:
        told.append(list(record.ranges()))
        return server.success(asked)

    server.answer = answer
    backend = await open_nbd(server)
    backend.keep(record)
    await write(backend, pool, 10, b"new")
    await backend.zero(Operation(), 100, 100, allocate=False)
    await trim(backend, Operation(), 1000, 1000)
    assert told == [
        [(0, 10), (13, 4096)],
        [(0, 10), (13, 100), (200, 4096)],
        [(0, 10), (13, 100), (200, 1000), (2000, 4096)],
    ]
    await backend.flush(Operation())
    assert list(record.ranges()) == [(0, 1000), (2000, 4096)]


async def test_change_whose_removal_fails_is_not_asked_for(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord
) -> None:
    backend = await open_nbd(server)
    backend.keep(record)
    record.end()
    with pytest.raises(StorageError, match="durable: Bad file"):
        await write(backend, pool, 0, b"new")
    assert server.asked == []


async def test_write_with_fua_is_durable_by_itself(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord
) -> None:
    backend = await open_nbd(server)
    backend.keep(record)
    await write(backend, pool, 8192, b"no")
    await write(backend, pool, 9000, b"fua", fua=True)
    assert list(record.ranges()) == [(0, 4096), (9000, 9003)]


@pytest.mark.parametrize("command", [Command.WRITE, Command.FLUSH])
async def test_nothing_is_durable_after_a_flush_or_fua_has_failed(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord, command: Command
) -> None:
    backend = await open_nbd(server)
    backend.keep(record)
    await write(backend, pool, 8192, b"before")
    answering(server, command, ErrorNumber.EIO)
    with pytest.raises(StorageError):
        await (write(backend, pool, 8192, b"fua", fua=True) if command == Command.WRITE else backend.flush(Operation()))
    server.answer = None
    with pytest.raises(StorageError):
        await write(backend, pool, 8192, b"after", fua=True)
    with pytest.raises(StorageError):
        await backend.flush(Operation())
    assert list(record.ranges()) == [(0, 4096)]


@pytest.mark.parametrize("command", [Command.READ, Command.FLUSH])
async def test_record_goes_on_after_what_fails_no_later_flush(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord, command: Command
) -> None:
    """A read of a block's rest for a write with FUA; a flush of nothing, which a server refuses that shuts down."""
    server.sizes = BlockSizes(4096, 4096, MiB)
    backend = await open_nbd(server)
    backend.keep(record)
    answering(server, command, ErrorNumber.EIO if command == Command.READ else ErrorNumber.ESHUTDOWN)
    with pytest.raises(StorageError):
        await (write(backend, pool, 8192, b"fua", fua=True) if command == Command.READ else backend.flush(Operation()))
    server.answer = None
    await write(backend, pool, 8192, b"after")
    await backend.flush(Operation())
    assert list(record.ranges()) == [(0, 4096), (8192, 8197)]


async def test_nothing_is_durable_after_a_change_without_an_answer(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord
) -> None:
    """It may be done after all, over what is written by then."""
    server.answer = nothing
    backend = await open_nbd(server)
    backend.keep(record)
    writing = asyncio.ensure_future(write(backend, pool, 0, b"old"))
    await eventually_async(lambda: server.asked)
    server.hang_up()
    with pytest.raises(ServerGone):
        await writing
    server.answer = None
    with pytest.raises(ServerGone):
        await write(backend, pool, 0, b"new", fua=True)
    assert list(record.ranges()) == [(3, 4096)]


async def test_fua_without_a_flag_for_it_makes_its_own_range_durable(
    server: FakeNbd, open_nbd: Open, pool: BufferPool, record: DurableRecord
) -> None:
    server.flags &= ~ExportFlag.SEND_FUA
    backend = await open_nbd(server)
    backend.keep(record)
    await write(backend, pool, 8192, b"no")
    await write(backend, pool, 9000, b"fua", fua=True)
    await zero(backend, Operation(), 10000, 100, allocate=False, fua=True)
    assert list(record.ranges()) == [(0, 4096), (9000, 9003), (10000, 10100)]


# TLS


@pytest.fixture
def tls_directory(certificates: Certificates, tmp_path: Path) -> Path:
    for source, name in (
        (certificates.cafile, "ca-cert.pem"),
        (certificates.certfile, "server-cert.pem"),
        (certificates.keyfile, "server-key.pem"),
    ):
        (tmp_path / name).write_bytes(source.read_bytes())
    return tmp_path


async def test_tls(open_nbd: Open, pool: BufferPool, certificates: Certificates, tls_directory: Path) -> None:
    options = OPTIONS._replace(context=client_tls(str(certificates.cafile)))
    with nbdkit("--tls=require", f"--tls-certificates={tls_directory}", "memory", "8M") as kit:
        backend = await open_nbd(
            f"nbds+unix:///?socket={kit.socket}&tls-hostname=localhost", connections=2, options=options
        )
        data = os.urandom(3 * MiB)
        await write(backend, pool, 1000, data)
        assert await read(backend, pool, 1000, len(data)) == data
        await backend.flush(Operation())
        await backend.close()


async def test_a_certificate_of_another_name_is_refused(
    open_nbd: Open, certificates: Certificates, tls_directory: Path
) -> None:
    options = OPTIONS._replace(context=client_tls(str(certificates.cafile)))
    with (
        nbdkit("--tls=require", f"--tls-certificates={tls_directory}", "memory", "1M") as kit,
        pytest.raises(Unusable, match="certificate"),
    ):
        await open_nbd(f"nbds+unix:///?socket={kit.socket}&tls-hostname=example.org", options=options)


async def test_a_server_without_tls_is_refused_where_it_is_wanted(open_nbd: Open, certificates: Certificates) -> None:
    options = OPTIONS._replace(context=client_tls(str(certificates.cafile)))
    with (
        nbdkit("--tls=off", "memory", "1M") as kit,
        pytest.raises(Unusable, match="STARTTLS refused"),
    ):
        await open_nbd(f"nbds+unix:///?socket={kit.socket}&tls-hostname=localhost", options=options)
