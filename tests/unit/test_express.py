# SPDX-License-Identifier: Apache-2.0
"""Requests that are served by callbacks, where a connection alone does not show what happens."""

import asyncio
from collections.abc import Callable
from typing import cast

from imageio_daemon.buffers import MIN_BUFFER, BufferPool, Buffers
from imageio_daemon.frontends.http.express import Express
from imageio_daemon.frontends.http.framing import parse_head
from imageio_daemon.frontends.http.short import ShortLine
from imageio_daemon.storage.base import Backend
from imageio_daemon.tickets import Access, Ticket
from imageio_daemon.transfers import Transfer
from imageio_daemon.transferstore import TransferStore
from tests.support.backends import MemoryBackend

TICKET = Ticket(
    ticket_id="secret", url="file:///disk", size=100, ops=(Access.READ,), timeout=300, inactivity_timeout=60
)


class Line:
    """A connection to which something happens just before it is counted."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def use(self, transfer: Transfer) -> None:
        self._before()
        transfer.connect(self)


async def test_image_that_is_let_go_of_while_a_request_begins_is_not_used() -> None:
    memory = MemoryBackend(bytes(100))
    now = 1000.0

    async def opened(ticket: Ticket) -> Backend:
        return cast(Backend, memory)

    def expire() -> None:
        nonlocal now
        now += 301
        transfer.release_expired()

    store = TransferStore(opened, most_tickets=1, most_connections=1, clock=lambda: now)
    transfer = store.add(TICKET)
    await transfer.backend()
    head = parse_head(b"GET /images/secret HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9\r\n\r\n")
    express = Express(store, Buffers(BufferPool(4 * MIN_BUFFER), MIN_BUFFER))
    assert express.take(head, cast(ShortLine, Line(expire))) is None
    while not memory.closed:
        await asyncio.sleep(0)
    await store.close()
