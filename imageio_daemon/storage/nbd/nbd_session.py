# SPDX-License-Identifier: Apache-2.0
"""A session: connections to one export with the same result of negotiation, until C takes them over."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ...errors import ServerGone
from ...nbdproto.client_negotiation import Agreed
from ...nbdproto.constants import ALLOCATION_DEPTH, BASE_ALLOCATION, ExportFlag
from ...runtime import logs
from ...urls.nbd import NbdAddress
from .client_handshake import Connection, ConnectOptions, connect

log = logging.getLogger(__name__)

#: Seconds for the greeting on each connection after the first. A server that serves one connection at a time
#: (qemu-nbd's default) never sends it on the others.
GREETING_TIMEOUT = 2.0


class Session(NamedTuple):
    """One or more connections, with the result of the negotiation. Only the first one is sure to have all contexts."""

    connections: tuple[Connection, ...]

    @property
    def agreed(self) -> Agreed:
        """Return the result of the negotiation."""
        return self.connections[0].agreed

    def leave(self) -> None:
        """Close the connections, which were not used."""
        for connection in self.connections:
            connection.leave()

    def for_c(self) -> tuple[Any, list[Any]]:
        """Return an iou_nbd_session, and the memory that it points to."""
        agreed, count = self.agreed, len(self.connections)
        session = ffi.new("iou_nbd_session *")
        session.connections = connections = ffi.new("iou_nbd_connection[]", count)
        session.count = count
        session.flags = agreed.flags
        session.structured, session.extended = agreed.structured, agreed.extended
        session.most = agreed.sizes.maximum
        kept: list[Any] = [connections]
        for told, connection in zip(connections, self.connections, strict=True):
            names = connection.agreed.contexts
            contexts = ffi.new("iou_nbd_context[]", [(i, _tells(name, agreed.bitmaps)) for i, name in names.items()])
            told.socket = connection.sock.fileno()
            told.contexts, told.contexts_count = contexts, len(names)
            told.tls = ffi.NULL if connection.tls is None else connection.tls.tls
            kept.append(contexts)
        return session, kept


def _tells(name: str, bitmaps: Sequence[str]) -> int:
    """Return the iou_extent_flag of a context's extents. That of a bitmap depends on its place in the list."""
    if name == BASE_ALLOCATION:
        return int(lib.IOU_EXTENT_ZERO)
    return int(lib.IOU_EXTENT_HOLE if name == ALLOCATION_DEPTH else lib.IOU_EXTENT_DIRTY << bitmaps.index(name))


async def open_session(address: NbdAddress, options: ConnectOptions, wanted: int) -> Session:
    """Open a session of 1 to `wanted` connections. Raises ServerGone if the first connection fails.

    Leaves out further connections that fail, get no greeting within GREETING_TIMEOUT, or negotiate another result. A
    cancelled task closes all connections.
    """
    first = await connect(address, options)
    opened, agreed = [first], first.agreed
    later = options._replace(greeting_timeout=min(GREETING_TIMEOUT, options.greeting_timeout))

    async def open_another(only: Sequence[str]) -> None:
        with suppress(ServerGone):
            connection = await connect(address, later, only)
            if _fits(connection.agreed, agreed, only):
                opened.append(connection)
            else:
                connection.leave()

    try:
        await asyncio.gather(*(open_another(only) for only in _selections(agreed, wanted - 1)))
    except BaseException:
        for connection in opened:
            connection.sock.close()
        raise
    log.info(
        "connected to an NBD server",
        extra=logs.fields(
            server=str(address),
            connections=len(opened),
            size=agreed.size,
            flags=f"{agreed.flags:#x}",
            headers="extended" if agreed.extended else "structured" if agreed.structured else "simple",
            blocks=",".join(map(str, agreed.sizes)),
            contexts=len(agreed.contexts),
        ),
    )
    return Session(tuple(opened))


def _selections(agreed: Agreed, count: int) -> Sequence[Sequence[str]]:
    """Return the contexts that each further connection selects. An empty list means those of the first connection."""
    # A server finds the extents of all contexts of a connection, even if a request needs only some. So one connection
    # has the bitmaps, and the others base:allocation. This needs coherent connections: without, a segment must be asked
    # for on the connection that writes it.
    bitmaps = agreed.bitmaps
    others = [name for name in agreed.contexts.values() if name not in bitmaps]
    if bitmaps and others and agreed.can(ExportFlag.CAN_MULTI_CONN):
        return [bitmaps, *[others] * count][:count]
    return [()] * count


def _fits(agreed: Agreed, first: Agreed, only: Sequence[str]) -> bool:
    """Return whether a connection serves the same as the first one, with the contexts that were asked for."""
    names = sorted(agreed.contexts.values())
    return replace(agreed, contexts=first.contexts) == first and names == sorted(only) if only else agreed == first


def same_image(before: Agreed, now: Agreed) -> bool:
    """Return whether an export is still the same: its size, block size, read-only flag and dirty bitmaps."""
    # If a bitmap is missing now, changed ranges would be reported as unchanged.
    return _identity(before) == _identity(now)


def _identity(agreed: Agreed) -> tuple[int, int, bool, list[str]]:
    return agreed.size, agreed.sizes.minimum, agreed.can(ExportFlag.READ_ONLY), agreed.bitmaps
