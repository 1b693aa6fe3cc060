# SPDX-License-Identifier: Apache-2.0
"""The NBD service in the test's own process: on an image in memory that fails on demand, or on real storage."""

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from imageio_daemon.buffers import BufferPool
from imageio_daemon.frontends.limit import ConnectionLimit
from imageio_daemon.frontends.nbd.handshake import Service
from imageio_daemon.frontends.nbd.server import NbdServer
from imageio_daemon.nbdproto.negotiation import Tls
from imageio_daemon.operations import Buffers
from imageio_daemon.storage.base import Backend
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.tickets import Access, Ticket
from imageio_daemon.transfers import Transfer
from imageio_daemon.transferstore import TransferStore
from tests.nbd.client import Client
from tests.support.backends import FaultyBackend, MemoryBackend
from tests.support.polling import SOON

KiB = 1024
MiB = 1024 * KiB
SIZE = 4 * MiB


class World:
    """A service and what it serves. `disk` is a ticket for an image in memory."""

    def __init__(
        self,
        *,
        tls: Tls = Tls.OFF,
        context: ssl.SSLContext | None = None,
        most: int = 16,
        handshake_timeout: float = 10.0,
        inactivity_timeout: int = 60,
        listed: bool = False,
        pool: int = 256 * MiB,
        piece: int = 4 * MiB,
        size: int = SIZE,
    ) -> None:
        self.memory = MemoryBackend(bytes(size))
        self.backend = FaultyBackend(self.memory)
        self.now = 1000.0
        self.opened: list[str] = []
        self.pool = BufferPool(pool)
        self.store = TransferStore(self._open, most_tickets=99, most_connections=9, clock=lambda: self.now)
        self.service = Service(
            store=self.store,
            buffers=Buffers(self.pool, piece),
            tls=tls,
            context=None if context is None else lambda: context,
            handshake_timeout=handshake_timeout,
            listed=listed,
        )
        self.server = NbdServer(self.service, ConnectionLimit(most))
        self.inactivity_timeout = inactivity_timeout
        self.disk = self.add("disk", size=size)
        self.address = ""
        self.clients: list[Client] = []
        self._engine: Engine | None = None

    def add(self, name: str, *, size: int = SIZE, path: Path | None = None, **fields: Any) -> Transfer:
        """Add a ticket; path: on this file, else on the image in memory."""
        ticket = {
            "ticket_id": name,
            "url": f"file://{path or '/memory'}",
            "size": size,
            "ops": (Access.WRITE,),
            "timeout": 300,
            "inactivity_timeout": self.inactivity_timeout,
            **fields,
        }
        return self.store.add(Ticket(**ticket))

    async def _open(self, ticket: Ticket) -> Backend:
        self.opened.append(ticket.ticket_id)
        if ticket.path == "/memory":
            return self.backend  # type: ignore[return-value]
        if self._engine is None:
            self._engine = Engine(8)
        return await FileBackend.open(self._engine, ticket.path, writable=ticket.may(Access.WRITE))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        """Serve on a unix socket; at the end, nothing may be left."""
        await self.server.start()
        with tempfile.TemporaryDirectory(prefix="nbd-") as directory:
            self.address = f"{directory}/socket"
            listening = await asyncio.get_running_loop().create_unix_server(self.server.connection, self.address)
            try:
                yield self
                await self.rest()
            finally:
                listening.close()
                async with asyncio.timeout(2 * SOON):
                    await self._stop()
            assert self.pool.lent == 0, "buffers are lent for ever"

    async def _stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.server.stop(SOON)
        await self.store.close()
        if self._engine is not None:
            await self._engine.release_loop()
            self._engine.stop(SOON)

    async def rest(self) -> None:
        """Close all clients and wait until the server has noticed."""
        for client in self.clients:
            await client.close()
        self.clients.clear()
        await self.until(lambda: not self.server._connections and not self.pool.lent)

    async def until(self, condition: Any) -> None:
        """Wait until condition() is true."""
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.002)

    async def connect(self, flags: int = 3) -> Client:
        """Connect; still in the negotiation."""
        client = await Client.connect(self.address, flags)
        self.clients.append(client)
        return client

    async def go(self, name: str = "disk", /, **options: bool) -> Client:
        """Connect and enter the transmission."""
        return await (await self.connect()).go(name, **options)
