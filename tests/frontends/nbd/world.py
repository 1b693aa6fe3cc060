# SPDX-License-Identifier: Apache-2.0
"""The NBD service in the test's own process: on an image of a server that fails on demand, or on real storage.

Time is real, because C knows no other.
"""

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from imageio_daemon.frontends.nbd.exports import NbdOptions
from imageio_daemon.frontends.nbd.server import NbdServer
from imageio_daemon.lanes.shared import Lanes
from imageio_daemon.nbdproto.constants import Command
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.server_negotiation import Tls
from imageio_daemon.net.connection_limit import ConnectionLimit
from imageio_daemon.net.tls_handshake import Handshakes
from imageio_daemon.net.tls_socket import TlsContext
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.buffers import BufferPool
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.nbd.backend import NbdBackend
from imageio_daemon.storage.nbd.client_handshake import ConnectOptions
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.records import Records
from tests.support.fakenbd import FakeNbd
from tests.support.polling import SOON, eventually_async

KiB = 1024
MiB = 1024 * KiB
SIZE = 4 * MiB

#: What a client may send that has negotiated nothing but structured replies: requests of each kind, two with a payload.
REQUESTS = b"".join(
    [
        RequestHeader(Command.WRITE, 0, 1, 4096, 3000).pack() + b"x" * 3000,
        RequestHeader(Command.READ, 0, 2, 0, 2 * MiB).pack(),
        RequestHeader(Command.BLOCK_STATUS, 0, 3, 0, SIZE).pack(),
        RequestHeader(Command.FLUSH, 0, 4, 0, 0).pack(),
        RequestHeader(Command.WRITE, 0, 5, 0, 70000).pack() + b"y" * 70000,
    ]
)


class World:
    """A service and what it serves. `disk` is a ticket for an image: a file in `directory`, else that of `remote`.

    remote: an NBD server, which does what the test wants. lanes: bytes of memory for connections. trust: clients start
    TLS, and believe this. threads: of the engine; the image has a quarter of them.
    """

    def __init__(
        self,
        *,
        tls: Tls = Tls.OFF,
        context: TlsContext | None = None,
        trust: ssl.SSLContext | None = None,
        most: int = 16,
        handshake_timeout: float = 10.0,
        inactivity_timeout: int = 60,
        listed: bool = False,
        pool: int = 256 * MiB,
        size: int = SIZE,
        directory: Path | None = None,
        lanes: int = 64 * MiB,
        threads: int = 1024,
    ) -> None:
        self.remote = FakeNbd(Path(), size, bytearray(size))
        self.opened: list[str] = []
        #: No image is opened until this is set.
        self.opens = asyncio.Event()
        self.opens.set()
        self.image = _new_file(directory, size) if directory else None
        self.pool = BufferPool(pool)
        self.engine = Engine(threads)
        self.lanes = Lanes(self.engine, lanes)
        self.store = TransferStore(self._open, most_tickets=99, most_connections=9)
        options = NbdOptions(
            store=self.store,
            tls=tls,
            context=None if context is None else lambda: context,
            handshake_timeout=handshake_timeout,
            listed=listed,
            lanes=self.lanes,
        )
        self._make_server = partial(NbdServer, options, ConnectionLimit(most))
        self.server: NbdServer
        self.trust = trust
        self.inactivity_timeout = inactivity_timeout
        self.disk = self.add("disk", size=size)
        self.address = ""
        self.clients: list[Client | Records] = []

    @property
    def content(self) -> bytes:
        """Return the bytes of the image."""
        return bytes(self.remote.content or b"") if self.image is None else self.image.read_bytes()

    def put(self, data: bytes, offset: int = 0) -> None:
        """Change the image, as another program would."""
        if self.image is None:
            assert self.remote.content is not None
            self.remote.content[offset : offset + len(data)] = data
        else:
            with self.image.open("r+b") as file:
                file.seek(offset)
                file.write(data)

    def add(self, name: str, *, size: int = SIZE, path: Path | None = None, **fields: Any) -> Transfer:
        """Add a ticket; path: on this file, else on the image."""
        file = path or self.image
        ticket = {
            "ticket_id": name,
            "url": f"file://{file}" if file else "nbd:unix:/remote",
            "size": size,
            "ops": (Access.WRITE,),
            "timeout": 300,
            "inactivity_timeout": self.inactivity_timeout,
            **fields,
        }
        return self.store.add(Ticket(**ticket))

    async def _open(self, ticket: Ticket) -> Backend:
        self.opened.append(ticket.ticket_id)
        await self.opens.wait()
        writable = ticket.may(Access.WRITE)
        if ticket.url.startswith("file:"):
            return await FileBackend.open(self.engine, ticket.path, writable=writable)
        options = ConnectOptions(dirty=False, context=None, timeout=SOON, greeting_timeout=SOON)
        address = self.remote.address
        return await NbdBackend.open(self.engine, address, options, connections=1, writable=writable, zero_unit=4096)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        """Serve on a unix socket; at the end, nothing may be left."""
        handshakes = Handshakes(asyncio.get_running_loop())
        self.server = self._make_server(handshakes)
        await self.server.start()
        with tempfile.TemporaryDirectory(prefix="nbd-") as directory:
            self.address = f"{directory}/socket"
            self.remote.socket = Path(directory) / "remote"
            listening = await self._listen()
            if self.image is None:
                await self.remote.start()
            try:
                yield self
                await self.rest()
            finally:
                listening.close()
                async with asyncio.timeout(2 * SOON):
                    await self._stop()
                    await self.remote.stop()
                handshakes.close()
            assert self.pool.in_use == 0, "buffers are in use for ever"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.get_running_loop().create_unix_server(self.server.connection, self.address)

    async def _stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.server.stop(SOON)
        await self.until(lambda: not self.server.admission.count)
        await self.store.close()
        assert not self.lanes.alive
        await self.engine.release()
        assert not self.engine.stop(SOON)

    async def rest(self) -> None:
        """Close all clients and wait until the server has noticed."""
        for client in self.clients:
            await client.close()
        self.clients.clear()
        await self.until(lambda: not self.server.admission.count and not self.pool.in_use)

    async def until(self, condition: Any) -> None:
        """Wait until condition() is true."""
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.002)

    async def connect(self, flags: int = 3) -> Client:
        """Connect; still in the negotiation."""
        client = await Client.connect(self.address, flags)
        self.clients.append(client)
        if self.trust is not None:
            await client.start_tls(self.trust)
        return client

    async def go(self, name: str = "disk", /, **options: bool) -> Client:
        """Connect and enter the transmission."""
        return await (await self.connect()).go(name, **options)


@contextlib.asynccontextmanager
async def leaving_nothing() -> AsyncIterator[None]:
    """Check after the block that it has left no thread of a lane and no descriptor."""
    before = _descriptors()
    yield
    await eventually_async(lambda: not lane_threads() and _descriptors() <= before)


def lane_threads() -> int:
    """Return how many threads of lanes there are in this process."""
    count = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            count += path.read_text() == "nbd-lane\n"
    return count


def _descriptors() -> int:
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += path.readlink() != Path("/dev/null")  # libuv keeps one, once it has listened
    return count


def _new_file(directory: Path, size: int) -> Path:
    path = directory / "disk"
    with path.open("wb") as file:
        file.truncate(size)
    return path
