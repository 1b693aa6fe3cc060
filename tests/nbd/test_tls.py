# SPDX-License-Identifier: Apache-2.0
"""TLS on a TCP socket of the service, in the test's own process."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.nbdproto.constants import Command, Option, Reply
from imageio_daemon.nbdproto.negotiation import Tls
from imageio_daemon.nbdproto.options import InfoRequest, OptionHeader
from tests.nbd.client import Client, Refused
from tests.nbd.world import MiB, World
from tests.support.daemon import Certificates

READ, WRITE = Command.READ, Command.WRITE


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    return context


@pytest.fixture
def trust(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.cafile))


@contextlib.asynccontextmanager
async def serving(
    context: ssl.SSLContext, tls: Tls = Tls.REQUIRED, *, handshake_timeout: float = 10.0
) -> AsyncIterator[World]:
    async with World(tls=tls, context=context, handshake_timeout=handshake_timeout).running() as world:
        yield world


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_image_moves_over_tls(context: ssl.SSLContext, trust: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    trust.minimum_version = trust.maximum_version = version
    async with serving(context) as world:
        client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")
        data = bytes(range(256)) * 8192
        for i in range(4):
            client.send(WRITE, i * len(data) // 2, data=data)
        await client.receive_all()
        assert (await client.request(READ, len(data), len(data) // 2)).data == data[: len(data) // 2]
        for i in range(20):
            client.send(READ, i, MiB)
        assert all(result.error == 0 for result in (await client.receive_all()).values())


async def test_without_tls_nothing_is_told(context: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        for option in (Option.LIST, Option.GO, Option.INFO, Option.STRUCTURED_REPLY, 77):
            with pytest.raises(Refused) as e:
                await client.ask(option, InfoRequest("disk", ()).pack())
            assert e.value.reply == Reply.ERR_TLS_REQD
        assert world.opened == []


async def test_old_tls_is_refused(context: ssl.SSLContext, trust: ssl.SSLContext) -> None:
    trust.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trust.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trust.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(context) as world:
        client = await world.connect()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.start_tls(trust)


async def test_failed_tls_ends_the_connection(context: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        await client.ask(Option.STARTTLS)
        client.writer.write(b"this is no ClientHello, whatever it looks like")
        await client.reader.read()  # an alert, maybe
        assert await client.at_end()


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00", b"\x15\x03\x01\x00\x02\x02\x30"])
async def test_client_that_leaves_while_tls_starts_is_not_counted(context: ssl.SSLContext, data: bytes) -> None:
    async with serving(context) as world:
        for _ in range(20):  # more than the limit
            client = await world.connect()
            await client.ask(Option.STARTTLS)
            client.writer.write(data)
            client.writer.transport.abort()
        await world.until(lambda: not world.server._connections)
        assert world.server._limit.count == 0


async def test_client_that_resets_while_tls_starts_is_not_counted(
    context: ssl.SSLContext, trust: ssl.SSLContext
) -> None:
    loop = asyncio.get_running_loop()
    async with serving(context) as world:
        for _ in range(20):
            outgoing = ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                trust.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                await loop.sock_connect(client, world.address)
                await loop.sock_sendall(client, b"\0\0\0\3" + OptionHeader(Option.STARTTLS, 0).pack())
                received = b""
                while len(received) < 18 + 20:
                    received += await loop.sock_recv(client, 18 + 20 - len(received))
                await loop.sock_sendall(client, outgoing.read())
                # Closing with the server's answer unread is a reset.
                await loop.sock_recv(client, 1)
        await world.until(lambda: not world.server._connections)
        assert world.server._limit.count == 0


async def test_clear_text_behind_starttls_ends_the_connection(context: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        client.writer.write(OptionHeader(Option.STARTTLS, 0).pack() + OptionHeader(Option.ABORT, 0).pack())
        assert await client.at_end()


async def test_stalled_tls_is_closed_in_time(context: ssl.SSLContext) -> None:
    async with serving(context, handshake_timeout=0.3) as world:
        client = await world.connect()
        await client.ask(Option.STARTTLS)
        assert await client.at_end()


async def test_state_from_before_tls_is_forgotten(context: ssl.SSLContext, trust: ssl.SSLContext) -> None:
    async with serving(context, Tls.OPTIONAL) as world:
        client = await world.connect()
        await client.ask(Option.STRUCTURED_REPLY)
        await client.start_tls(trust)
        await client.go("disk", structured=False)
        assert (await client.request(READ, 0, 512)).data == bytes(512)  # a simple reply: no chunk came


async def test_client_certificate_is_checked(context: ssl.SSLContext, certificates: Certificates) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.cafile)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 tells the client only after its handshake
    async with serving(context) as world:
        trust = ssl.create_default_context(cafile=str(certificates.cafile))
        client = await world.connect()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.start_tls(trust)
        trust.load_cert_chain(certificates.client_certfile)
        client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")


async def test_slow_reader_gets_what_was_read(context: ssl.SSLContext, trust: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client, other = await world.connect(), await world.connect()
        for each in (client, other):
            await each.start_tls(trust)
            await each.go("disk")
        client.pause_reading()
        world.memory.content[:] = b"a" * len(world.memory.content)
        cookies = [client.send(READ, 0, MiB) for _ in range(8)]
        await world.until(lambda: world.backend.calls.count("pread") == 8)
        world.memory.content[:] = b"b" * len(world.memory.content)
        for _ in range(16):
            assert (await other.request(READ, 0, MiB)).data == b"b" * MiB
        client.resume_reading()
        results = await client.receive_all()
        assert all(results[cookie].data == b"a" * MiB for cookie in cookies)


async def test_cancelled_ticket_ends_a_tls_connection(context: ssl.SSLContext, trust: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")
        await asyncio.wait_for(world.store.remove("disk", 10), 10)
        assert await client.at_end()


async def test_goodbye_over_tls_is_no_fault(
    context: ssl.SSLContext, trust: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(context) as world:
        client: Client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")
        client.send(Command.DISC)
        assert await client.at_end()
    assert "Traceback" not in caplog.text
