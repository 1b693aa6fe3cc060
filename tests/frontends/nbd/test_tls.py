# SPDX-License-Identifier: Apache-2.0
"""TLS on a TCP socket of the service, in the test's own process."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.config.services import TlsSection
from imageio_daemon.nbdproto.constants import Command, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import InfoRequest, OptionHeader
from imageio_daemon.nbdproto.server_negotiation import Tls
from imageio_daemon.net.tls_contexts import ServerTls
from imageio_daemon.net.tls_socket import TlsContext
from tests.frontends.nbd.client import Client, Refused
from tests.frontends.nbd.world import SIZE, MiB, World
from tests.support.daemon import Certificates
from tests.support.polling import SOON
from tests.support.tlsflood import FloodingClient

READ, WRITE = Command.READ, Command.WRITE


@pytest.fixture
def context(certificates: Certificates) -> TlsContext:
    return ServerTls(_config(certificates)).context


def _config(certificates: Certificates, **fields: str) -> TlsSection:
    cert_file, key_file = str(certificates.certfile), str(certificates.keyfile)
    return TlsSection(enable=True, cert_file=cert_file, key_file=key_file, **fields)


@pytest.fixture
def trust(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.cafile))


@contextlib.asynccontextmanager
async def serving(
    context: TlsContext, tls: Tls = Tls.REQUIRED, *, handshake_timeout: float = 10.0
) -> AsyncIterator[World]:
    async with World(tls=tls, context=context, handshake_timeout=handshake_timeout).running() as world:
        yield world


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_image_moves_over_tls(context: TlsContext, trust: ssl.SSLContext, version: ssl.TLSVersion) -> None:
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


async def test_without_tls_nothing_is_told(context: TlsContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        for option in (OptionType.LIST, OptionType.GO, OptionType.INFO, OptionType.STRUCTURED_REPLY, 77):
            with pytest.raises(Refused) as e:
                await client.ask(option, InfoRequest("disk", ()).pack())
            assert e.value.reply == Reply.ERR_TLS_REQD
        assert world.opened == []


async def test_old_tls_is_refused(context: TlsContext, trust: ssl.SSLContext) -> None:
    trust.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trust.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trust.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(context) as world:
        client = await world.connect()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.start_tls(trust)


async def test_failed_tls_ends_the_connection(context: TlsContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        await client.ask(OptionType.STARTTLS)
        client.writer.write(b"this is no ClientHello, whatever it looks like")
        await client.drop_all()  # an alert, maybe
        assert await client.at_end()


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00", b"\x15\x03\x01\x00\x02\x02\x30"])
async def test_client_that_leaves_while_tls_starts_is_not_counted(context: TlsContext, data: bytes) -> None:
    async with serving(context) as world:
        for _ in range(20):  # more than the limit
            client = await world.connect()
            await client.ask(OptionType.STARTTLS)
            client.writer.write(data)
            client.writer.transport.abort()
        await world.until(lambda: not world.server.admission.count)
        assert world.server.limit.count == 0


async def test_client_that_resets_while_tls_starts_is_not_counted(context: TlsContext, trust: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    async with serving(context) as world:
        for _ in range(20):
            outgoing = ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                trust.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                await loop.sock_connect(client, world.address)
                await loop.sock_sendall(client, b"\0\0\0\3" + OptionHeader(OptionType.STARTTLS, 0).pack())
                received = b""
                while len(received) < 18 + 20:
                    received += await loop.sock_recv(client, 18 + 20 - len(received))
                await loop.sock_sendall(client, outgoing.read())
                # Closing with the server's answer unread is a reset.
                await loop.sock_recv(client, 1)
        await world.until(lambda: not world.server.admission.count)
        assert world.server.limit.count == 0


async def test_clear_text_behind_starttls_ends_the_connection(context: TlsContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        client.writer.write(OptionHeader(OptionType.STARTTLS, 0).pack() + OptionHeader(OptionType.ABORT, 0).pack())
        assert await client.at_end()


async def test_stalled_tls_is_closed_in_time(context: TlsContext) -> None:
    async with serving(context, handshake_timeout=1) as world:
        client = await world.connect()
        await client.ask(OptionType.STARTTLS)
        assert await client.at_end()


async def test_state_from_before_tls_is_forgotten(context: TlsContext, trust: ssl.SSLContext) -> None:
    async with serving(context, Tls.OPTIONAL) as world:
        client = await world.connect()
        await client.ask(OptionType.STRUCTURED_REPLY)
        await client.start_tls(trust)
        await client.go("disk", structured=False)
        assert (await client.request(READ, 0, 512)).data == bytes(512)  # a simple reply: no chunk came


async def test_client_certificate_is_checked(certificates: Certificates) -> None:
    config = _config(certificates, ca_file=str(certificates.cafile), client_auth="required")
    async with serving(ServerTls(config).context) as world:
        trust = ssl.create_default_context(cafile=str(certificates.cafile))
        trust.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 tells the client only after its handshake
        client = await world.connect()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.start_tls(trust)
        trust.load_cert_chain(certificates.client_certfile)
        client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")


async def test_slow_reader_gets_what_was_read(context: TlsContext, trust: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client, other = await world.connect(), await world.connect()
        for each in (client, other):
            await each.start_tls(trust)
            await each.go("disk")
        client.pause_reading()
        world.put(b"a" * MiB + b"b" * (SIZE - MiB))
        cookies = [client.send(READ, 0, MiB) for _ in range(8)]
        await world.until(lambda: len(world.remote.commands(READ)) >= 8)
        for _ in range(16):
            assert (await other.request(READ, MiB, MiB)).data == b"b" * MiB
        client.resume_reading()
        results = await client.receive_all()
        assert all(results[cookie].data == b"a" * MiB for cookie in cookies)


async def test_cancelled_ticket_ends_a_tls_connection(context: TlsContext, trust: ssl.SSLContext) -> None:
    async with serving(context) as world:
        client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")
        await asyncio.wait_for(world.store.remove("disk", 10), 10)
        assert await client.at_end()


async def test_goodbye_over_tls_is_no_fault(
    context: TlsContext, trust: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(context) as world:
        client: Client = await world.connect()
        await client.start_tls(trust)
        await client.go("disk")
        client.send(Command.DISC)
        assert await client.at_end()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_peer_that_sends_many_records_without_data_is_cut(context: TlsContext, version: ssl.TLSVersion) -> None:
    def flood(address: str) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(SOON)
            sock.connect(address)
            sock.sendall(b"\0\0\0\3" + OptionHeader(OptionType.STARTTLS, 0).pack())
            received = b""
            while len(received) < 18 + 20:
                received += sock.recv(18 + 20 - len(received))
            client = FloodingClient(sock, version)
            client.send_all(client.idle_records(200))
            return client.is_cut()

    async with serving(context) as world:
        assert await asyncio.to_thread(flood, world.address)
