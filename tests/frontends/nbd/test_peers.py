# SPDX-License-Identifier: Apache-2.0
"""Clients as others wrote them, played by a script; and our answers beside those of other servers."""

import asyncio
import contextlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from struct import pack

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import ContextRequest, ExportInfo, InfoRequest, OptionHeader
from tests.frontends.nbd.client import Client, Refused
from tests.frontends.nbd.conftest import MakeNbdDaemon
from tests.frontends.nbd.world import KiB, MiB, World
from tests.support.images import pattern
from tests.support.polling import eventually

READ, WRITE, FLUSH, TRIM, DISC = Command.READ, Command.WRITE, Command.FLUSH, Command.TRIM, Command.DISC
ZERO, CACHE, STATUS = Command.WRITE_ZEROES, Command.CACHE, Command.BLOCK_STATUS
FUA, NO_HOLE, DF, REQ_ONE = CommandFlag.FUA, CommandFlag.NO_HOLE, CommandFlag.DF, CommandFlag.REQ_ONE

# Clients


async def test_linux_kernel_client_with_two_connections(world: World, tmp_path: Path) -> None:
    """GO without infos, simple replies only, requests of 128 KiB, tags in the low half of the cookie."""
    path, size, piece = tmp_path / "image", 8 * MiB, 128 * KiB
    path.write_bytes(bytes(size))
    world.add("kernel", size=size, path=path, sparse=True)
    sockets = []
    for _ in range(2):
        client = await world.connect()
        replies = await client.ask(OptionType.GO, InfoRequest("kernel", ()).pack())
        client.export = ExportInfo.unpack(replies[0][1])
        sockets.append(client)
    chance, wanted, counter = random.Random(3), bytearray(size), 0
    for _ in range(8):
        places = chance.sample(range(size // piece), 32)
        for tag, place in enumerate(places):
            counter += 1
            client, offset, cookie = chance.choice(sockets), place * piece, counter << 32 | tag
            kind = chance.choice([READ, WRITE, WRITE, TRIM])
            data = chance.randbytes(piece) if kind == WRITE else b""
            client.send(kind, offset, piece, FUA if data and tag % 5 == 0 else 0, data=data, cookie=cookie)
            if kind != READ:
                wanted[offset : offset + piece] = data or bytes(piece)
        for client in sockets:
            assert not any(result.error for result in (await client.receive_all()).values())
        assert (await sockets[0].request(FLUSH)).error == 0
    for client in sockets:
        client.send(DISC)
        assert await client.at_end()
    found = path.read_bytes()
    assert found == wanted


async def test_ovirt_imageio_client(world: World, tmp_path: Path) -> None:
    """Flags 1, three contexts of which we know one, GO without infos, one request at a time."""
    path, size = tmp_path / "image", 3 << 30
    with path.open("wb") as file:
        file.truncate(size)
    world.add("imageio", size=size, path=path, sparse=True)
    client = await world.connect(1)
    await client.ask(OptionType.STRUCTURED_REPLY)
    client.structured = True
    listed = await client.ask(OptionType.LIST_META_CONTEXT, ContextRequest("imageio", ("qemu:dirty-bitmap:",)).pack())
    assert [reply for reply, _ in listed] == [Reply.ACK]
    queries = ("base:allocation", "qemu:allocation-depth", "qemu:dirty-bitmap:backup")
    selected = await client.ask(OptionType.SET_META_CONTEXT, ContextRequest("imageio", queries).pack())
    assert [data[4:] for reply, data in selected if reply == Reply.META_CONTEXT] == [b"base:allocation"]
    await client.ask(OptionType.GO, InfoRequest("imageio", ()).pack())
    assert (await client.request(WRITE, MiB, data=pattern(MiB))).error == 0
    for start in range(2 * MiB, size, 1 << 30):
        assert (await client.request(ZERO, start, min(1 << 30, size - start), 0)).error == 0
    extents, offset = [], 0
    while offset < size:
        told = (await client.request(STATUS, offset, min(size - offset, 2 << 30))).extents
        extents += told
        offset += sum(length for length, _ in told)
    assert sum(length for length, status in extents if not status & 2) == MiB
    assert (await client.request(READ, MiB, MiB)).data == pattern(MiB)
    assert (await client.request(FLUSH)).error == 0
    failed = await client.request(READ, size, 512)
    assert failed.error == ErrorNumber.EINVAL  # an ERROR chunk with DONE, which Client checks


async def test_signals_harm_no_connection(make_nbd_daemon: MakeNbdDaemon, tmp_path: Path) -> None:
    daemon, address = make_nbd_daemon()
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB))
    ticket = daemon.add_ticket(path, MiB)
    for _ in range(50):
        daemon.send_signal(signal.SIGHUP)
        client = await Client.connect(address)
        daemon.send_signal(signal.SIGHUP)
        await client.go(ticket)
        daemon.send_signal(signal.SIGHUP)
        assert (await client.request(READ, 0, 512)).data == pattern(MiB)[:512]
        await client.close()


# Servers

SIZE = 512 * MiB
MAX = 32 * MiB

Connect = Callable[[int], Awaitable[Client]]


@contextlib.contextmanager
def serving(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(address) == 0


@pytest.fixture(params=["imageio-daemon", "qemu-nbd", "nbdkit"])
async def server(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> AsyncIterator[tuple[str, Connect]]:
    """The name of a server that exports 512 MiB as `image`, and how to connect to it."""
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.write(pattern(MiB))
    name: str = request.param
    clients: list[Client] = []
    with contextlib.ExitStack() as cleanup:
        address = world.address
        if name == "imageio-daemon":
            world.add("image", size=SIZE, path=path, sparse=True)
        elif shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        else:
            address = f"{cleanup.enter_context(tempfile.TemporaryDirectory(prefix='nbd-'))}/socket"
            commands = {
                "qemu-nbd": ["-f", "raw", "-x", "image", "-k", address, "--persistent", "-e", "8", str(path)],
                "nbdkit": ["--foreground", "-U", address, "file", str(path)],
            }
            cleanup.enter_context(serving(name, *commands[name]))
            await asyncio.to_thread(eventually, lambda: listens(address), f"{name} listens")

        async def connect(flags: int) -> Client:
            clients.append(await Client.connect(address, flags))
            return clients[-1]

        yield name, connect
        for client in clients:
            await client.close()


async def outcome(client: Client, action: Awaitable[object]) -> str:
    """Return how the server answered: ok, the name of the error, or closed."""
    try:
        async with asyncio.timeout(30):
            result = await action
    except Refused as e:
        return Reply(e.reply).name
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed"
    error = getattr(result, "error", 0)
    return ErrorNumber(error).name if error else "ok"


#: What is sent as options, and what each server answers: ours, qemu-nbd 7.2, nbdkit 1.32 with its file plugin. Where
#: they differ, ours is the one that the specification recommends; nbdkit takes any name for its only export.
OPTIONS: dict[str, tuple[int, bytes, str, str, str]] = {
    "unknown with 1 MiB": (77, bytes(MiB), "ERR_UNSUP", "ERR_UNSUP", "ERR_UNSUP"),
    "unknown, claiming 4 GiB": (77, b"", "closed", "closed", "closed"),
    "list with data": (OptionType.LIST, b"x", "ERR_INVALID", "ERR_INVALID", "ERR_INVALID"),
    "abort with data": (OptionType.ABORT, b"bye", "ok", "ok", "ok"),
    "starttls without tls": (OptionType.STARTTLS, b"", "ERR_POLICY", "ERR_POLICY", "ERR_POLICY"),
    "structured with data": (OptionType.STRUCTURED_REPLY, b"x", "ERR_INVALID", "ERR_INVALID", "ERR_INVALID"),
    "extended headers": (OptionType.EXTENDED_HEADERS, b"", "ok", "ERR_UNSUP", "ERR_UNSUP"),
    "info": (OptionType.INFO, InfoRequest("image", (3, 3, 77)).pack(), "ok", "ok", "ok"),
    "info, unknown name": (OptionType.INFO, InfoRequest("other", ()).pack(), "ERR_UNKNOWN", "ERR_UNKNOWN", "ok"),
    "info, long name": (
        OptionType.INFO,
        InfoRequest("n" * 4097, ()).pack(),
        "ERR_INVALID",
        "ERR_INVALID",
        "ERR_INVALID",
    ),
    "info, too short": (OptionType.INFO, b"\0", "ERR_INVALID", "ERR_INVALID", "ERR_INVALID"),
    "context before structured": (
        OptionType.SET_META_CONTEXT, ContextRequest("image", ("base:allocation",)).pack(),
        "ERR_INVALID", "ERR_INVALID", "ERR_INVALID",
    ),
    "queries that are not there": (
        OptionType.LIST_META_CONTEXT, pack(">I", 5) + b"image" + pack(">I", 1000),
        "ERR_INVALID", "ERR_INVALID", "ERR_INVALID",
    ),
}  # fmt: skip


#: What later versions answer: qemu-nbd 8.2 has extended headers.
NEWER = {("qemu-nbd", "extended headers"): "ok"}


@pytest.mark.parametrize("name", OPTIONS)
async def test_options_are_answered_as_other_servers_do(server: tuple[str, Connect], name: str) -> None:
    program, connect = server
    option, payload, *answers = OPTIONS[name]
    client = await connect(3)
    if "claiming" in name:
        client.writer.write(OptionHeader(option, 2**32 - 1).pack())
        found = "closed" if await client.at_end() else "answered"
    else:
        found = await outcome(client, client.ask(option, payload))
    expected = answers[["imageio-daemon", "qemu-nbd", "nbdkit"].index(program)]
    assert found in (expected, NEWER.get((program, name)))
    if found != "closed" and option not in (OptionType.ABORT, OptionType.EXTENDED_HEADERS):
        await client.go("image")
        assert (await client.request(READ, 0, 512)).data == pattern(512)


#: command, offset, length, flags; the answers as above, "!" when the connection ends with it. The specification wants
#: ENOSPC past the end, where qemu says EINVAL; EOVERFLOW for a READ above the advertised maximum; FLUSH's reserved
#: fields ignored. nbdkit's maximum is 64 MiB.
REQUESTS: dict[str, tuple[int, int, int, int, str, str, str]] = {
    "largest read": (READ, 0, MAX, 0, "ok", "ok", "ok"),
    "read above the largest": (READ, 0, MAX + 1, 0, "EOVERFLOW", "EINVAL", "ok"),
    "read past the end": (READ, SIZE, 1, 0, "EINVAL", "EINVAL", "EINVAL"),
    "read near 2^64": (READ, 2**64 - 512, 512, 0, "EINVAL", "EINVAL", "EINVAL"),
    "unaligned read": (READ, 3, 5, 0, "ok", "ok", "ok"),
    "empty read": (READ, 0, 0, 0, "ok", "ok", "EINVAL"),
    "read with another's flag": (READ, 0, 512, REQ_ONE, "EINVAL", "EINVAL", "EINVAL"),
    "read with an unknown flag": (READ, 0, 512, 0x100, "EINVAL", "EINVAL", "EINVAL"),
    "write past the end": (WRITE, SIZE - 1, 512, 0, "ENOSPC", "EINVAL", "ENOSPC"),
    "write above the largest": (WRITE, 0, MAX + 512, 0, "EINVAL", "EINVAL!", "ok"),
    "write with another's flag": (WRITE, 0, 512, NO_HOLE, "EINVAL", "EINVAL", "EINVAL"),
    "write": (WRITE, 0, 512, FUA, "ok", "ok", "ok"),
    "flush with reserved fields": (FLUSH, 512, 512, 0, "ok", "ok", "EINVAL"),
    "cache": (CACHE, 0, 256 * MiB, 0, "ok", "EINVAL", "ok"),
    "zero past the end": (ZERO, SIZE, 512, 0, "ENOSPC", "EINVAL", "ENOSPC"),
    "zero": (ZERO, MiB, SIZE - MiB, NO_HOLE, "ok", "ok", "ok"),
    "trim": (TRIM, MiB, SIZE - MiB, 0, "ok", "ok", "ok"),
    "status": (STATUS, 3, 5, 0, "ok", "ok", "ok"),
    "empty status": (STATUS, 0, 0, 0, "EINVAL", "EINVAL", "EINVAL"),
    "unknown command": (77, 0, 512, 0, "EINVAL", "EINVAL", "EINVAL"),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_requests_are_answered_as_other_servers_do(server: tuple[str, Connect], name: str) -> None:
    program, connect = server
    command, offset, length, flags, *answers = REQUESTS[name]
    client = await (await connect(3)).go("image")
    data = pattern(512) * (length // 512) if command == WRITE else b""
    found = await outcome(client, client.request(command, offset, length, flags, data=data))
    wanted = answers[["imageio-daemon", "qemu-nbd", "nbdkit"].index(program)]
    if wanted.endswith("!"):
        # A close with bytes unread may overtake the answer.
        assert found in (wanted[:-1], "closed")
        assert await client.at_end()
    else:
        assert found == wanted
        assert (await client.request(READ, 0, 512)).data == pattern(512)


async def test_fragments_need_structured_replies_everywhere(server: tuple[str, Connect]) -> None:
    client = await (await server[1](3)).go("image", structured=False)
    assert (await client.request(READ, 0, 512, DF)).error == ErrorNumber.EINVAL
    assert (await client.request(STATUS, 0, 512)).error == ErrorNumber.EINVAL


@pytest.mark.parametrize("sent", [b"\0\0\0\7", b"\0\0\0\3NOTANOPT" + bytes(8)], ids=["flags", "magic"])
async def test_nonsense_closes_everywhere(server: tuple[str, Connect], sent: bytes) -> None:
    client = await server[1](int.from_bytes(sent[:4]))
    client.writer.write(sent[4:])
    assert await client.at_end()
