# SPDX-License-Identifier: Apache-2.0
"""The services, and the server that brings their resources together with connections."""

import asyncio
import json
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ... import __version__
from ...buffers import Buffers
from ...checksum import Hashing
from ...config import Config
from ...connectionlimit import ConnectionLimit, Place, Stage
from ...errors import Error, Unavailable
from ...storage.lane import Lanes
from ...transferstore import TransferStore
from ...units import KiB
from .adapter import Adapter
from .checksum import Checksums
from .connection import Connection
from .express import Express
from .extents import Extents
from .framing import MAX_HEAD, Head
from .headers import parse_target
from .images import READ_METHODS, Images
from .lending import Lending
from .messages import JSON, Request, Response, preflight
from .routes import Resource, Routes
from .tickets import Tickets

log = logging.getLogger(__name__)

#: Bytes of a body that aiohttp may hold; it stops reading at twice as many. 64 TLS uploads at once: 256 KiB peaked at
#: 405 MiB RSS, this at 374, as fast.
READ_BUFFER = 64 * KiB
#: Bytes read from a socket at once while no handler waits for them. One for all connections of a server.
SCRATCH = 256 * KiB
#: Connections keep their own time: aiohttp's timer would cut a transfer that it does not see.
YEARS = 10 * 365 * 24 * 3600.0
#: Methods that parsers know. Whoever answers another one, it is not aiohttp: it would say 400.
METHODS = frozenset(("OPTIONS", "GET", "HEAD", "PUT", "PATCH", "DELETE", "POST"))


class HttpServer:
    """Serve routes on one loop's connections; `connection` makes them for listening sockets."""

    def __init__(
        self,
        routes: Routes,
        *,
        inactivity_timeout: float,
        fast_lane: bool = False,
        express: Express | None = None,
        lending: Lending | None = None,
        limit: ConnectionLimit,
        trusts: bool = False,
    ) -> None:
        self.routes = routes
        #: Serve requests without aiohttp where that is possible.
        self.fast_lane = fast_lane
        #: Who takes short requests of the fast lane.
        self.express = express
        #: Who lends connections to C.
        self.lending = lending
        self.scratch = memoryview(bytearray(SCRATCH))
        #: Seconds for a connection that has not used a ticket.
        self.inactivity_timeout = inactivity_timeout
        self.limit = limit
        self._trusts = trusts
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._stopping = False
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Get ready for connections of the running loop."""
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", Adapter(self.routes).serve, expect_handler=_continue_later)
        app.on_response_prepare.append(_keep_length)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_aiohttp_log(),
            handler_cancellation=True,  # a request whose client has gone is work for nobody
            keepalive_timeout=YEARS,
            lingering_time=0.0,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            auto_decompress=False,
            read_bufsize=READ_BUFFER,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()

    @property
    def connections(self) -> int:
        """Return how many connections are served now. May be asked in any thread."""
        return len(self._connections)

    def connection(self) -> Connection:
        """Return the protocol of a new connection, for create_server."""
        return Connection(self)

    async def stop(self, timeout: float) -> None:
        """Take no more requests, close idle connections, and wait at most timeout seconds for requests that run."""
        self._stopping = True
        for connection in list(self._connections):
            connection.close_when_idle()
        try:
            if self._connections:
                async with asyncio.timeout(timeout):
                    await self._empty.wait()
        except TimeoutError:
            log.warning("%d requests are cut off", len(self._connections))
        finally:
            for connection in list(self._connections):
                connection.abort("shutdown")
        if self._runner is not None:
            await self._runner.cleanup()

    # For connections

    def admit(self, connection: Connection, address: str, drop: Callable[[], object]) -> Place:
        """Return the place of a connection. Raises TooManyConnections, Unavailable."""
        if self._stopping:
            raise Unavailable("The server is shutting down")
        place = self.limit.enter(Stage.STRANGER, address, drop)
        if self._trusts:
            place.know(lambda: True)
        self._connections.add(connection)
        self._empty.clear()
        return place

    def forget(self, connection: Connection) -> None:
        """Count it no more."""
        if connection in self._connections:
            self._connections.remove(connection)
            if not self._connections:
                self._empty.set()

    def make_handler(self) -> asyncio.Protocol:
        """Return a handler of aiohttp."""
        server = self._runner.server if self._runner is not None else None
        if server is None:
            raise RuntimeError("the server was not started")
        return server()

    def refusal(self, head: Head) -> Exception | None:
        """Return why a request cannot be handed on: nobody answers it, or no parser knows its method."""
        try:
            path, _ = parse_target(head.target)
            if head.method not in METHODS:
                self.routes.handler(path, head.method)
        except Error as e:
            return e
        return None


def images_server(
    config: Config,
    store: TransferStore,
    buffers: Buffers,
    hashing: Hashing,
    limit: ConnectionLimit,
    *,
    unix_socket: str | None,
    lanes: Lanes | None,
) -> HttpServer:
    """Return the remote and local services of one loop: images, and what the server is. The loops share the rest."""
    images = Images(store, buffers, max_connections=config.daemon.max_connections, unix_socket=unix_socket)
    checksums = Checksums(store, buffers, hashing)
    routes = Routes(
        {
            "/images/{}": images.resource(),
            "/images/{}/extents": Extents(store).resource(),
            "/images/{}/checksum": checksums.resource(),
            "/images/{}/checksum/algorithms": checksums.list_resource(),
            "/info/": Resource({"OPTIONS": preflight(READ_METHODS), "GET": _info}, READ_METHODS, READ_METHODS),
        }
    )
    return HttpServer(
        routes,
        fast_lane=config.remote.fast_lane,
        express=Express(store, buffers) if config.remote.fast_lane else None,
        lending=Lending(store, lanes) if config.remote.fast_lane and lanes is not None else None,
        inactivity_timeout=config.daemon.inactivity_timeout,
        limit=limit,
    )


def control_server(config: Config, store: TransferStore) -> HttpServer:
    """Return the control service: tickets."""
    tickets = Tickets(
        store,
        inactivity_timeout=config.daemon.inactivity_timeout,
        remove_timeout=config.control.remove_timeout,
    )
    routes = Routes({"/tickets/": tickets.collection(), "/tickets/{}": tickets.resource()})
    return HttpServer(
        routes,
        inactivity_timeout=config.daemon.inactivity_timeout,
        # Of its own: clients that use up the other one must not keep the manager out.
        limit=ConnectionLimit(config.daemon.max_total_connections),
        trusts=True,  # who may connect may do all
    )


async def _info(_: Request) -> Response:
    return Response(200, {"Content-Type": JSON}, json.dumps({"version": __version__}).encode())


async def _continue_later(_: web.Request) -> None:
    """Send no 100 Continue yet: the request is not authorised."""


async def _keep_length(_: web.Request, response: web.StreamResponse) -> None:
    """Say that a 204 is empty, which aiohttp leaves out (RFC 9110 8.6): clients of the control service wait for it."""
    if response.status == 204:
        response.headers["Content-Length"] = "0"


class _Quiet(logging.Filter):
    """Drop the details of requests that aiohttp could not parse: their text holds the ticket id."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info = None
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return True


def _aiohttp_log() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.aiohttp")
    if not logger.filters:
        logger.addFilter(_Quiet())
    return logger
