# SPDX-License-Identifier: Apache-2.0
"""The proxy's backend beside a server that answers what a test says."""

import asyncio
import errno
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack

import pytest

from imageio_daemon.errors import (
    Canceled,
    CannotFlush,
    Fault,
    Forbidden,
    NotFast,
    NotFound,
    OutOfRange,
    StorageError,
    Unanswered,
    Unavailable,
)
from imageio_daemon.image.extents import Extent
from imageio_daemon.net.tls_contexts import client_context
from imageio_daemon.storage.backend import Context, Operation, ZeroMethod
from imageio_daemon.storage.buffers import PAGE, BufferPool
from imageio_daemon.storage.durable import DurableRecord
from imageio_daemon.storage.http import backend as http_backend
from imageio_daemon.storage.http import client as http_client
from imageio_daemon.storage.http import unflushed
from imageio_daemon.storage.http import zeroing as http_zeroing
from imageio_daemon.storage.http.backend import HttpBackend
from imageio_daemon.storage.http.client import Body, HttpClient
from imageio_daemon.storage.http.unflushed import Unflushed
from imageio_daemon.units import GiB, KiB
from imageio_daemon.urls.http import HttpAddress
from tests.support.backends import extents_of
from tests.support.daemon import Certificates, Daemon
from tests.support.polling import eventually_async

from .conftest import SIZE
from .test_backend import read, write

SECRET = "the-other-ticket"
FEATURES = ["checksum", "checksum_range", "extents", "flush", "zero"]

Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer; header names have underscores for dashes."""
    fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
    return "\r\n".join(lines).encode() + body


def options(**changes: object) -> bytes:
    """Return a good answer to OPTIONS, with changes."""
    return answer(200, json.dumps({"features": FEATURES, "max_readers": 8, "max_writers": 8, **changes}).encode())


def first_byte(size: int = SIZE) -> bytes:
    """Return a good answer to the question for the size."""
    return answer(206, b"\0", Content_Range=f"bytes 0-0/{size}")


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def stay_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


class ScriptedServer:
    """Answer requests, on any connection, with the answers of a list, in turn. Notes the requests' heads."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                self.asked.set()
                length = next((int(x.split(":")[1]) for x in head.split("\r\n") if x.startswith("Content-Length")), 0)
                reply = self.answers.pop(0)
                if callable(reply):
                    await reply(reader, writer)
                    continue
                self.bodies.append(await reader.readexactly(length))
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closes
        finally:
            writer.transport.abort()


@pytest.fixture
async def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
async def open_scripted(
    server: ScriptedServer, certificates: Certificates
) -> AsyncIterator[Callable[..., Awaitable[HttpBackend]]]:
    """Open a backend on the scripted server: await open_scripted(answers…)."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    port = listening.sockets[0].getsockname()[1]
    async with AsyncExitStack() as cleanup:

        async def open_backend(*answers: Answer, max_connections: int = 8) -> HttpBackend:
            server.answers = list(answers)
            address = HttpAddress("localhost", port, SECRET)
            context = client_context(str(certificates.cafile))
            backend = await HttpBackend.open(address, context=context, max_connections=max_connections)
            cleanup.push_async_callback(backend.close)
            return backend

        yield open_backend
    listening.close()


OpenScripted = Callable[..., Awaitable[HttpBackend]]


# What it asks for


async def test_a_write_names_its_range_and_does_not_flush(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200))
    await write(backend, pool, 100, b"data", phase=100)
    assert server.heads[-1].startswith(f"PUT /images/{SECRET}?flush=n HTTP/1.1")
    assert "Content-Range: bytes 100-103/*" in server.heads[-1]
    assert server.bodies[-1] == b"data"


async def test_a_write_with_fua_flushes(open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200))
    buffer = await pool.acquire(PAGE)
    await backend.pwrite(Operation(), buffer.slice(0, 1), 0, fua=True)
    buffer.release()
    assert server.heads[-1].startswith(f"PUT /images/{SECRET}?flush=y HTTP/1.1")


def zeroed(server: ScriptedServer) -> list[tuple[int, int, bool]]:
    asked = [json.loads(body) for body in server.bodies if body]
    return [(each["offset"], each["size"], each["flush"]) for each in asked if each["op"] == "zero"]


async def test_zeroing_goes_in_steps_and_flushes_last(
    open_scripted: OpenScripted, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_zeroing, "QUICK", 60)
    backend = await open_scripted(options(), first_byte(), answer(200), answer(200), answer(200), answer(200))
    op = Operation()
    assert await backend.zero(op, 5, 4 * GiB, allocate=False, fua=True) is ZeroMethod.REMOTE
    assert zeroed(server) == [(5, GiB, False), (5 + GiB, 2 * GiB, False), (5 + 3 * GiB, GiB, False)]
    assert json.loads(server.bodies[-1]) == {"op": "flush"}
    assert op.done == 4 * GiB


async def test_steps_of_zeroing_become_smaller_on_slow_storage(
    open_scripted: OpenScripted, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_zeroing, "QUICK", -1)
    monkeypatch.setattr(http_zeroing, "SLOW", -1)
    backend = await open_scripted(options(), first_byte(), answer(200), answer(200))
    await backend.zero(Operation(), 0, GiB + GiB // 2, allocate=False)
    assert zeroed(server) == [(0, GiB, False), (GiB, GiB // 2, False)]


async def test_connections_are_used_again(open_scripted: OpenScripted, server: ScriptedServer) -> None:
    backend = await open_scripted(options(), first_byte(), *[answer(200)] * 10)
    for _ in range(10):
        await backend.flush(Operation())
    assert server.connections == 1


async def test_no_more_connections_than_the_other_server_wants(
    open_scripted: OpenScripted, server: ScriptedServer
) -> None:
    backend = await open_scripted(options(max_readers=1, max_writers=2), first_byte(), *[answer(200)] * 20)
    before = server.connections
    assert (backend.info.max_readers, backend.info.max_writers) == (1, 2)
    await asyncio.gather(*(backend.flush(Operation()) for _ in range(20)))
    assert server.connections - before <= 2


async def test_no_more_connections_are_announced_than_the_configuration_has(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(max_readers=100), first_byte(), max_connections=3)
    assert (backend.info.max_readers, backend.info.max_writers) == (3, 3)


async def test_the_size_is_asked_for_again(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(), first_byte(100), first_byte(200))
    assert backend.info.size == 100
    await backend.refresh(Operation())
    assert backend.info.size == 200


async def test_what_is_available_is_what_the_other_server_tells_now(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(available=7), first_byte(), options(available=5), options())
    assert [await backend.available(Operation()) for _ in range(2)] == [5, None]


async def test_an_empty_image_has_size_0(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(), answer(416, Content_Range="bytes */0"))
    assert backend.info.size == 0


async def test_a_closed_connection_is_replaced(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    backend = await open_scripted(
        options(), first_byte(), answer(200, Connection="close"), answer(206, b"xy", Content_Range="bytes 3-4/9")
    )
    await backend.flush(Operation())
    assert await read(backend, pool, 3, 2) == b"xy"


# What it refuses to believe


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(200, b"[]"), id="no object"),
        pytest.param(answer(200, b"{"), id="no JSON"),
        pytest.param(answer(200, b"[" * 10000), id="deep JSON"),
        pytest.param(options(features="all"), id="features no list"),
        pytest.param(options(features=[1]), id="features no text"),
        pytest.param(options(max_readers=0), id="no readers"),
        pytest.param(options(max_writers="8"), id="writers no number"),
        pytest.param(options(max_writers=True), id="writers a flag"),
        pytest.param(options(instance=1), id="instance no text"),
        pytest.param(options(instance="x" * 257), id="instance too long"),
        pytest.param(options(available="1"), id="available no number"),
        pytest.param(options(available=True), id="available a flag"),
        pytest.param(options(available=-1), id="available negative"),
        pytest.param(options(available=2**64), id="available too large"),
        pytest.param(answer(200, b" " * (64 * KiB + 1)), id="too long"),
        pytest.param(answer(200, b"{}", Content_Encoding="gzip"), id="encoded"),
        pytest.param(answer(302, Location="https://elsewhere/"), id="redirect"),
        pytest.param(answer(500), id="failure"),
        pytest.param(b"SSH-2.0\r\n\r\n", id="no HTTP"),
        pytest.param(hang_up, id="hangs up"),
    ],
)
async def test_opening_fails_after_a_bad_answer(
    open_scripted: OpenScripted, server: ScriptedServer, bad: Answer
) -> None:
    with pytest.raises(StorageError) as failure:
        await open_scripted(bad, hang_up)  # OPTIONS is asked again when the connection was lost
    assert SECRET not in str(failure.value)


@pytest.mark.parametrize(
    ("status", "code", "fault"),
    [
        (507, "storage_full", Fault.FULL),
        (500, "storage_permission", Fault.PERMISSION),
        (500, "storage_gone", Fault.GONE),
        (500, "storage_io", Fault.IO),
        (500, "unheard_of", Fault.IO),
    ],
)
async def test_code_of_the_other_side_is_passed_on(
    open_scripted: OpenScripted, status: int, code: str, fault: Fault
) -> None:
    with pytest.raises(StorageError) as failure:
        await open_scripted(answer(status, X_Error_Code=code))
    assert failure.value.fault is fault


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(206, b"\0"), id="no Content-Range"),
        pytest.param(answer(206, b"\0", Content_Range="bytes 0-0/*"), id="no total"),
        pytest.param(answer(206, b"\0", Content_Range="bytes 0-0/" + "9" * 20), id="total too long"),
        pytest.param(answer(200, b"\0"), id="no range"),
        pytest.param(answer(206, b"\0\0", Content_Range="bytes 0-1/9"), id="more bytes"),
        pytest.param(answer(416), id="416 without size"),
    ],
)
async def test_opening_fails_without_a_size(open_scripted: OpenScripted, bad: Answer) -> None:
    with pytest.raises(StorageError):
        await open_scripted(options(), bad)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(200, b"1234", Content_Range="bytes 8-11/100"), id="status 200"),
        pytest.param(answer(206, b"1234", Content_Range="bytes 0-3/100"), id="another offset"),
        pytest.param(answer(206, b"1234"), id="no Content-Range"),
        pytest.param(answer(206, b"123", Content_Range="bytes 8-11/100"), id="shorter"),
        pytest.param(answer(206, b"12345", Content_Range="bytes 8-11/100"), id="longer"),
        pytest.param(answer(206, b"12", Content_Range="bytes 8-11/100", Content_Length="4") + b"", id="cut"),
        pytest.param(answer(206, b"1234", Content_Range="bytes 8-11/100", Content_Encoding="gzip"), id="encoded"),
    ],
)
async def test_a_wrong_range_is_no_data(open_scripted: OpenScripted, pool: BufferPool, bad: bytes) -> None:
    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bad)
        await writer.drain()
        writer.close()

    backend = await open_scripted(options(), first_byte(), cut, cut)
    with pytest.raises(StorageError):
        await read(backend, pool, 8, 4)


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, Forbidden), (404, NotFound), (500, StorageError), (503, Unavailable), (400, StorageError)],
)
async def test_a_refusal_keeps_its_meaning(
    open_scripted: OpenScripted, pool: BufferPool, status: int, error: type[Exception]
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(status, SECRET.encode()))
    with pytest.raises(error) as refusal:
        await write(backend, pool, 0, b"x")
    assert SECRET not in str(refusal.value)


async def test_a_range_outside_is_told_with_the_size(open_scripted: OpenScripted, pool: BufferPool) -> None:
    backend = await open_scripted(options(), first_byte(), answer(416, Content_Range="bytes */77"))
    with pytest.raises(OutOfRange) as refusal:
        await read(backend, pool, 100, 1)
    assert refusal.value.size == 77


# The connection fails


async def test_a_lost_connection_fails_the_write_and_the_next_one_works(
    open_scripted: OpenScripted, pool: BufferPool
) -> None:
    backend = await open_scripted(options(), first_byte(), hang_up, hang_up, answer(200))
    with pytest.raises(StorageError) as failure:
        await write(backend, pool, 0, b"x")
    assert failure.value.errno == errno.ECONNRESET
    await write(backend, pool, 0, b"x")


async def test_a_flush_without_an_answer_is_not_repeated_and_fails_for_ever(
    open_scripted: OpenScripted, server: ScriptedServer
) -> None:
    backend = await open_scripted(options(), first_byte(), hang_up, answer(200))
    with pytest.raises(StorageError):
        await backend.flush(Operation())
    depths = []
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            await backend.flush(Operation())
        depths.append(len(caught.traceback))
    assert depths[0] == depths[1]  # each raise adds to the traceback of what is kept
    assert len(server.answers) == 1


async def test_a_failed_write_with_fua_fails_later_flushes(open_scripted: OpenScripted, pool: BufferPool) -> None:
    backend = await open_scripted(options(), first_byte(), answer(500), answer(200))
    buffer = await pool.acquire(PAGE)
    with pytest.raises(StorageError):
        await backend.pwrite(Operation(), buffer.slice(0, 1), 0, fua=True)
    buffer.release()
    with pytest.raises(StorageError):
        await backend.flush(Operation())


# The server is started anew


def process(name: str) -> bytes:
    """Return an answer to OPTIONS of the process with a name."""
    return options(instance=name)


def asked(server: ScriptedServer) -> list[str]:
    """Return the methods of all requests since it was opened."""
    return [head.partition(" ")[0] for head in server.heads[2:]]


async def test_a_flush_by_the_process_that_had_all_changes_is_good(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unflushed, "KNOWN_FOR", 0)
    backend = await open_scripted(
        *(process("x"), first_byte()),
        *(process("x"), answer(200), answer(200), answer(200), process("x")),
        *(process("x"), answer(200), answer(200), process("x")),
    )
    await write(backend, pool, 0, b"a")
    await backend.zero(Operation(), 1, 1, allocate=False)
    await backend.flush(Operation())
    await write(backend, pool, 0, b"b")
    await backend.flush(Operation())
    assert asked(server) == ["OPTIONS", "PUT", "PATCH", "PATCH", "OPTIONS", "OPTIONS", "PUT", "PATCH", "OPTIONS"]


@pytest.mark.parametrize("zeroes", [False, True])
async def test_a_flush_by_another_process_than_had_the_changes_fails_for_ever(
    open_scripted: OpenScripted,
    server: ScriptedServer,
    pool: BufferPool,
    zeroes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unflushed, "KNOWN_FOR", 0)
    backend = await open_scripted(process("x"), first_byte(), process("x"), answer(200), answer(200), process("y"))
    if zeroes:
        await backend.zero(Operation(), 0, 1, allocate=False)
    else:
        await write(backend, pool, 0, b"a")
    for _ in range(2):
        with pytest.raises(StorageError, match="started anew before all changes were flushed"):
            await backend.flush(Operation())
    assert not server.answers
    assert len(server.heads) == 6


async def test_a_name_that_was_just_told_is_not_asked_for_again(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unflushed, "KNOWN_FOR", 60)
    backend = await open_scripted(process("x"), first_byte(), *(answer(200), answer(200), process("x")) * 2)
    for _ in range(2):
        await write(backend, pool, 0, b"a")
        await backend.flush(Operation())
    assert asked(server) == ["PUT", "PATCH", "OPTIONS"] * 2


async def test_a_process_that_begins_with_nothing_to_flush_is_good(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unflushed, "KNOWN_FOR", 0)
    backend = await open_scripted(
        *(process("x"), first_byte()),
        *(process("y"), answer(200), answer(200), process("y")),
        *(answer(200), process("z"), answer(200), answer(200), process("z")),
    )
    await write(backend, pool, 0, b"a")
    await backend.flush(Operation())
    await backend.flush(Operation())  # there is nothing that could be lost
    await write(backend, pool, 0, b"b")
    await backend.flush(Operation())
    assert not server.answers


async def test_writes_with_fua_are_not_lost_with_the_process(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    backend = await open_scripted(process("x"), first_byte(), answer(200), answer(200))
    await write(backend, pool, 0, b"a", fua=True)
    await backend.flush(Operation())
    assert asked(server) == ["PUT", "PATCH"]


async def test_a_flush_of_which_nobody_knows_who_did_it_fails_and_the_next_one_tells(
    open_scripted: OpenScripted, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unflushed, "KNOWN_FOR", 0)
    backend = await open_scripted(
        *(process("x"), first_byte(), process("x"), answer(200)),
        *(answer(200), answer(503)),
        *(answer(200), process("x")),
    )
    await write(backend, pool, 0, b"a")
    with pytest.raises(Unavailable):
        await backend.flush(Operation())
    await backend.flush(Operation())


async def test_a_server_that_does_not_tell_its_instance_is_not_asked(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200), answer(200))
    await write(backend, pool, 0, b"a")
    await backend.flush(Operation())
    assert asked(server) == ["PUT", "PATCH"]


def changes_of(*instances: str) -> tuple[Unflushed, list[str]]:
    """Return changes that processes with these names have answered, and the list of names that are told from now on."""
    names: list[str] = []

    async def ask(_: Operation) -> str:
        return names[-1]

    unflushed = Unflushed(ask, "x")
    for instance in instances:
        unflushed.changed(instance)
    return unflushed, names


@pytest.mark.parametrize("last", ["x", "y"])
async def test_changes_of_two_processes_are_not_flushed_by_either(last: str) -> None:
    unflushed, names = changes_of("x", "y")
    names.append(last)
    assert not await unflushed.flushed(Operation(), unflushed.pending)


async def test_a_change_during_a_flush_waits_for_the_next_one() -> None:
    unflushed, names = changes_of("x")
    pending = unflushed.pending
    unflushed.changed("x")
    names.append("x")
    assert await unflushed.flushed(Operation(), pending)
    names.append("y")
    assert not await unflushed.flushed(Operation(), unflushed.pending)
    names.append("x")
    assert await unflushed.flushed(Operation(), unflushed.pending)
    assert not unflushed.pending


async def test_a_silent_server_fails_the_request_in_time(
    open_scripted: OpenScripted, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await open_scripted(options(), first_byte(), stay_silent)
    monkeypatch.setattr(http_backend, "DATA_TIMEOUT", 0.05)
    with pytest.raises(StorageError) as failure:
        await read(backend, pool, 0, 1)
    assert failure.value.errno == errno.ETIMEDOUT


async def test_a_cancelled_operation_that_waits_for_the_answer_is_interrupted(
    open_scripted: OpenScripted, server: ScriptedServer
) -> None:
    backend = await open_scripted(options(), first_byte(), stay_silent)
    server.asked.clear()
    op = Operation()
    waiting = asyncio.create_task(backend.refresh(op))
    await server.asked.wait()
    op.cancel()
    await asyncio.to_thread(backend.interrupt)
    with pytest.raises(Canceled):
        await waiting


async def test_an_operation_may_be_interrupted_again_while_it_ends(
    open_scripted: OpenScripted, server: ScriptedServer
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    backend = await open_scripted(options(), first_byte(), stay_silent)
    server.asked.clear()
    op = Operation()
    waiting = asyncio.create_task(backend.refresh(op))
    await server.asked.wait()
    op.cancel()
    while not waiting.done():
        backend.interrupt()
        await asyncio.sleep(0)
    assert isinstance(waiting.exception(), Canceled)
    assert not reported


async def test_a_write_whose_client_is_gone_keeps_its_buffer_until_the_answer(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    received, go_on = bytearray(), asyncio.Event()

    async def take_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        received.extend(await reader.readexactly(8 * 1024 * KiB))
        writer.write(answer(200))

    backend = await open_scripted(options(), first_byte(), take_late)
    server.asked.clear()
    buffer = await pool.acquire(8 * 1024 * KiB)
    buffer.view[:] = b"a" * buffer.size
    op = Operation()
    writing = asyncio.ensure_future(backend.pwrite(op, buffer.slice(0, buffer.size), 0))
    buffer.release()
    await server.asked.wait()
    writing.cancel()
    op.cancel()
    backend.interrupt()
    await asyncio.wait([writing])
    assert pool.in_use
    go_on.set()
    await eventually_async(lambda: not pool.in_use)
    assert received == b"a" * (8 * 1024 * KiB)
    assert not op.in_storage


async def test_a_change_waits_for_an_earlier_one_that_overlaps_although_its_client_is_gone(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    go_on = asyncio.Event()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        await go_on.wait()
        writer.write(answer(200))

    backend = await open_scripted(options(), first_byte(), answer_late, answer(200), answer(200))
    server.asked.clear()
    first = asyncio.create_task(write(backend, pool, 0, b"old"))
    await server.asked.wait()
    first.cancel()
    await asyncio.wait([first])
    later = asyncio.create_task(write(backend, pool, 1, b"new"))
    await write(backend, pool, 3 + 1, b"elsewhere")
    assert asked(server) == ["PUT", "PUT"]
    assert not later.done()
    go_on.set()
    await later
    assert server.bodies[-1] == b"new"


async def test_what_was_cancelled_while_it_waited_for_another_change_ends_at_once(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    go_on, op = asyncio.Event(), Operation()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        await go_on.wait()
        writer.write(answer(200))

    backend = await open_scripted(options(), first_byte(), answer_late)
    server.asked.clear()
    first = asyncio.create_task(write(backend, pool, 0, b"old"))
    await server.asked.wait()
    later = asyncio.ensure_future(backend.zero(op, 0, 4096, allocate=False))
    op.cancel()
    backend.interrupt()
    with pytest.raises(Canceled):
        await asyncio.wait_for(later, 5)
    assert not op.in_storage
    go_on.set()
    await first
    assert asked(server) == ["PUT"]


@pytest.mark.parametrize("how", ["no answer", "hang up"])
async def test_a_change_that_is_not_answered_fails_every_flush(
    open_scripted: OpenScripted, pool: BufferPool, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It may be made after all, over what is written by then."""
    bad = [stay_silent] if how == "no answer" else [hang_up] * 3  # aiohttp asks again
    backend = await open_scripted(options(), first_byte(), *bad)
    monkeypatch.setattr(http_backend, "DATA_TIMEOUT", 0.2)
    with pytest.raises(Unanswered):
        await write(backend, pool, 0, b"old")
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(Unanswered):
            await backend.flush(Operation())


async def test_a_change_that_is_refused_fails_no_flush(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(500), answer(200))
    with pytest.raises(StorageError):
        await write(backend, pool, 0, b"old")
    await backend.flush(Operation())
    assert asked(server) == ["PUT", "PATCH"]


async def test_a_change_for_which_no_connection_is_made_in_time_was_not_asked_for(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails no flush: it will not be made later."""
    monkeypatch.setattr(http_client, "CONNECT_TIMEOUT", 0.2)
    with socket.socket() as busy, ExitStack() as waiting:
        busy.bind(("127.0.0.1", 0))
        busy.listen(0)
        for _ in range(4):  # there is no room for more than one or two
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(busy.getsockname())
        address = HttpAddress("127.0.0.1", busy.getsockname()[1], SECRET)
        asking = HttpClient(address, client_context(str(certificates.cafile)), 1)
        with pytest.raises(StorageError, match="connect") as failed:
            async with asking.request(Operation(), "PUT", finishes=True):
                raise AssertionError
        await asking.close()
    assert failed.value.errno == errno.ETIMEDOUT
    assert not isinstance(failed.value, Unanswered)


async def test_a_change_that_waited_for_a_connection_of_others_was_not_asked_for(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails no flush."""
    backend = await open_scripted(options(max_readers=1, max_writers=1), first_byte(), stay_silent)
    reading = asyncio.create_task(read(backend, pool, 0, 1))  # on the only connection
    await eventually_async(lambda: len(server.heads) == 3)
    monkeypatch.setattr(http_backend, "DATA_TIMEOUT", 0.2)
    with pytest.raises(StorageError, match="no connection became free") as failed:
        await write(backend, pool, 0, b"new")
    assert not isinstance(failed.value, Unanswered)
    assert not backend.info.unflushed
    reading.cancel()


async def test_no_server_no_image(certificates: Certificates) -> None:
    context = client_context(str(certificates.cafile))
    with pytest.raises(StorageError) as failure:
        await HttpBackend.open(HttpAddress("localhost", 1, SECRET), context=context, max_connections=8)
    assert failure.value.errno == errno.ECONNREFUSED
    assert SECRET not in str(failure.value)


async def test_an_unknown_authority_is_refused(other_daemon: Daemon) -> None:
    with pytest.raises(StorageError, match="tls"):
        await HttpBackend.open(
            HttpAddress("localhost", other_daemon.port, SECRET), context=client_context(""), max_connections=8
        )


async def test_a_certificate_of_another_name_is_refused(other_daemon: Daemon) -> None:
    with pytest.raises(StorageError, match="tls"):
        await HttpBackend.open(
            HttpAddress("127.0.0.2", other_daemon.port, SECRET),
            context=client_context(str(other_daemon.cafile)),
            max_connections=8,
        )


# Several event loops


async def test_each_loop_has_its_connections_and_all_are_closed(
    open_scripted: OpenScripted, server: ScriptedServer
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200), answer(200))
    stop = threading.Event()

    async def flush_and_wait() -> None:
        await backend.flush(Operation())
        flushed.set()
        await asyncio.to_thread(stop.wait)

    flushed = threading.Event()
    other = asyncio.create_task(asyncio.to_thread(asyncio.run, flush_and_wait()))
    await asyncio.to_thread(flushed.wait)
    assert server.connections == 2
    await backend.close()
    stop.set()
    await other


async def test_changes_that_overlap_are_made_in_the_order_in_which_loops_have_asked(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200), answer(200))
    zero_began, write_began, stop = threading.Event(), threading.Event(), threading.Event()

    async def zero_and_wait() -> None:
        zeroing = backend.zero(Operation(), 0, PAGE, allocate=False)
        zero_began.set()
        write_began.wait()  # the loop runs no task meanwhile
        await zeroing
        await asyncio.to_thread(stop.wait)

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, zero_and_wait()))
    await asyncio.to_thread(zero_began.wait)
    writing = asyncio.create_task(write(backend, pool, 0, b"new"))
    for _ in range(10):
        await asyncio.sleep(0)
    write_began.set()
    await writing
    assert asked(server) == ["PATCH", "PUT"]
    await backend.close()
    stop.set()
    await other


async def test_after_the_end_nothing_is_asked(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(), first_byte())
    await backend.close()
    with pytest.raises(Canceled):
        await backend.flush(Operation())


# What it cannot do


async def test_nothing_is_promised_to_be_fast(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(), first_byte())
    with pytest.raises(NotFast):
        await backend.zero(Operation(), 0, 1, allocate=False, fast_only=True)


async def test_a_server_that_cannot_flush_is_told_and_not_asked(
    open_scripted: OpenScripted, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await open_scripted(options(features=["zero"]), first_byte())
    assert not backend.info.can_flush
    assert "cannot flush" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(CannotFlush) as caught:
        await backend.flush(Operation())
    assert SECRET not in str(caught.value)
    assert not asked(server)


async def test_a_server_whose_ticket_only_reads_is_not_complained_of(
    open_scripted: OpenScripted, caplog: pytest.LogCaptureFixture
) -> None:
    await open_scripted(options(features=["checksum", "checksum_range", "extents"]), first_byte())
    assert "cannot flush" not in caplog.text


async def test_a_server_without_extents_has_data(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(features=["zero"]), first_byte(), first_byte())
    assert await extents_of(backend, 5, 10) == [Extent(5, 10)]


async def test_a_server_without_extents_has_no_dirty_ones(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(features=["zero"]), first_byte())
    assert not backend.info.has_dirty
    with pytest.raises(NotFound):
        await extents_of(backend, 0, SIZE, Context.DIRTY)


async def test_dirty_extents_are_asked_for(open_scripted: OpenScripted, server: ScriptedServer) -> None:
    text = b'[{"start": 0, "length": 9, "dirty": true, "zero": false}]'
    backend = await open_scripted(options(), first_byte(9), first_byte(9), answer(200, text))
    assert await extents_of(backend, 0, 9, Context.DIRTY) == [Extent(0, 9, dirty=True)]
    assert server.heads[-1].startswith(f"GET /images/{SECRET}/extents?context=dirty ")


async def test_extents_that_end_early_fail(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(), first_byte(9), first_byte(9), answer(200, b'[{"start": 0, "length": 8}]'))
    with pytest.raises(StorageError):
        await extents_of(backend, 0, 9)


async def test_no_extents_of_nothing(open_scripted: OpenScripted) -> None:
    backend = await open_scripted(options(), first_byte(0), first_byte(0))
    assert await extents_of(backend, 0, 0) == []


def test_the_bytes_of_an_image_are_no_text() -> None:
    with pytest.raises(TypeError):
        Body(memoryview(b"x")).decode()


async def test_flush_whose_client_is_gone_is_answered_and_fails_later_ones(
    open_scripted: OpenScripted, server: ScriptedServer
) -> None:
    go_on, op = asyncio.Event(), Operation()

    async def fail_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        await go_on.wait()
        writer.write(answer(500))

    backend = await open_scripted(options(), first_byte(), fail_late)
    server.asked.clear()
    flushing = asyncio.create_task(asyncio.wait_for(backend.flush(op), 60))
    await server.asked.wait()
    op.cancel()
    backend.interrupt()
    flushing.cancel()
    await asyncio.wait([flushing])
    assert op.in_storage
    go_on.set()
    await eventually_async(lambda: not op.in_storage)
    with pytest.raises(StorageError):
        await backend.flush(Operation())


# The record of what is durable


async def test_change_is_asked_for_after_its_removal_from_the_record(
    open_scripted: OpenScripted, pool: BufferPool, record: DurableRecord
) -> None:
    told: list[list[tuple[int, int]]] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.append(list(record.ranges()))
        writer.write(answer(200, Connection="close"))
        writer.close()

    backend = await open_scripted(options(), first_byte(), note, note, answer(200))
    backend.keep(record)
    await write(backend, pool, 10, b"new")
    await backend.zero(Operation(), 100, 100, allocate=False)
    assert told == [[(0, 10), (13, 4096)], [(0, 10), (13, 100), (200, 4096)]]
    await backend.flush(Operation())
    assert list(record.ranges()) == [(0, 4096)]


async def test_change_whose_removal_fails_is_not_asked_for(
    open_scripted: OpenScripted, server: ScriptedServer, pool: BufferPool, record: DurableRecord
) -> None:
    backend = await open_scripted(options(), first_byte())
    backend.keep(record)
    record.end()
    with pytest.raises(StorageError, match="out of what is durable"):
        await write(backend, pool, 0, b"new")
    assert asked(server) == []


async def test_write_with_fua_is_durable_by_itself(
    open_scripted: OpenScripted, pool: BufferPool, record: DurableRecord
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200), answer(200))
    backend.keep(record)
    await write(backend, pool, 8192, b"no")
    await write(backend, pool, 9000, b"fua", fua=True)
    assert list(record.ranges()) == [(0, 4096), (9000, 9003)]


async def test_nothing_is_durable_after_a_failed_flush(
    open_scripted: OpenScripted, pool: BufferPool, record: DurableRecord
) -> None:
    backend = await open_scripted(options(), first_byte(), answer(200), answer(500), answer(200))
    backend.keep(record)
    await write(backend, pool, 8192, b"before")
    with pytest.raises(StorageError):
        await backend.flush(Operation())
    await write(backend, pool, 8192, b"after", fua=True)
    assert list(record.ranges()) == [(0, 4096)]


async def test_nothing_is_durable_after_a_change_without_an_answer(
    open_scripted: OpenScripted, pool: BufferPool, record: DurableRecord
) -> None:
    """It may be made after all, over what is written by then."""
    backend = await open_scripted(options(), first_byte(), *[hang_up] * 3, answer(200))
    backend.keep(record)
    with pytest.raises(Unanswered):
        await write(backend, pool, 0, b"old")
    await write(backend, pool, 0, b"new", fua=True)
    assert list(record.ranges()) == [(3, 4096)]


async def test_change_is_recorded_after_it_is_known_which_process_has_it(
    open_scripted: OpenScripted, pool: BufferPool, record: DurableRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a flush that begins in between does not ask whether that process was there still."""
    backend = await open_scripted(options(), first_byte(), answer(200))
    pending: list[int] = []
    monkeypatch.setattr(record, "changed", lambda *_, **__: pending.append(backend._unflushed.pending))
    backend.keep(record)
    await write(backend, pool, 0, b"new")
    assert pending == [1]
