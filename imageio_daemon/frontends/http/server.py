# SPDX-License-Identifier: Apache-2.0
"""The services, and the server that brings their resources together with connections."""

import asyncio
import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ... import __version__
from ...config.config import Config
from ...errors import Error
from ...lanes.lane import Lanes
from ...net.connection_limit import ConnectionLimit
from ...operations.checksum import Hashing
from ...service.served import Served
from ...storage.buffers import Buffers
from ...transfers.store import TransferStore
from ...units import KiB
from .admission import Admission
from .answering import Answering
from .connection import ServerConnection
from .framing import MAX_HEAD, Head
from .headers import parse_target
from .lane_service import LaneService
from .messages import json_response
from .request import READ_BUFFER
from .resources.checksum import Checksums
from .resources.extents import Extents
from .resources.images import READ_METHODS, Images
from .resources.status import Status
from .resources.tickets import Tickets
from .routes import Resource, Routes, preflight
from .services import Services

log = logging.getLogger(__name__)

#: Bytes read from a socket at once; one for all connections of a server. Uploads of 256 MiB through aiohttp took 0.17 s
#: of processor time on the unix socket, 0.42 over TLS; with 32 KiB 0.28 and 0.49, with 256 KiB, most of which aiohttp
#: has to keep, 0.44 and 0.74.
SCRATCH = 64 * KiB
#: Connections keep their own time: aiohttp's timer would cut a transfer that it does not see.
YEARS = 10 * 365 * 24 * 3600.0
#: Methods that parsers know. Whoever answers another one, it is not aiohttp: it would say 400.
METHODS = frozenset(("OPTIONS", "GET", "HEAD", "PUT", "PATCH", "DELETE", "POST"))
#: The route of all paths, whatever they hold: escaped line feeds, too.
EVERYTHING = r"/{rest:[\s\S]*}"
#: The path of the target http://HOST, which aiohttp's router does not match with anything.
NO_PATH = [""]


class HttpServer:
    """Serve routes on one loop's connections; `connection` makes them for listening sockets.

    inactivity_timeout: seconds for a connection that has not used a ticket. trusts: who may connect may do all.
    services: what clients of the network, and of the unix socket, are counted for in served.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        inactivity_timeout: float,
        lanes: LaneService | None = None,
        limit: ConnectionLimit,
        trusts: bool = False,
        served: Served | None = None,
        services: tuple[str, str] = ("remote", "local"),
    ) -> None:
        self.limit = limit
        self._routes = routes
        self._admission = Admission(limit, trusts=trusts)
        self._services = Services(
            inactivity_timeout=inactivity_timeout,
            admission=self._admission,
            make_handler=self._make_handler,
            refusal=self._refusal,
            lanes=lanes,
            served=served or Served(),
            names=services,
            scratch=memoryview(bytearray(SCRATCH)),
        )
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Get ready for connections of the running loop."""
        app = web.Application()
        app.router.add_route("*", EVERYTHING, self._routes.answer, expect_handler=_continue_later)
        Answering(self._routes).install(app)
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
        return self._admission.count

    def connection(self) -> ServerConnection:
        """Return the protocol of a new connection, for create_server."""
        return ServerConnection(self._services)

    async def stop(self, timeout: float) -> None:
        """Take no more requests, close idle connections, and wait at most timeout seconds for requests that run."""
        await self._admission.stop(timeout)
        if self._runner is not None:
            await self._runner.cleanup()

    def _make_handler(self) -> asyncio.Protocol:
        server = self._runner.server if self._runner is not None else None
        if server is None:
            raise RuntimeError("the server was not started")
        return server()

    def _refusal(self, head: Head) -> Exception | None:
        """Return why aiohttp cannot answer: its parser does not know the method, or its router the path."""
        try:
            path, _ = parse_target(head.target)
            if head.method not in METHODS or path == NO_PATH:
                self._routes.handler(path, head.method)
        except Error as e:
            return e
        return None


def images_server(
    config: Config,
    store: TransferStore,
    buffers: Buffers,
    hashing: Hashing,
    limit: ConnectionLimit,
    served: Served,
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
        lanes=LaneService(store, lanes) if config.remote.c_lane and lanes is not None else None,
        inactivity_timeout=config.daemon.inactivity_timeout,
        limit=limit,
        served=served,
    )


def control_server(config: Config, store: TransferStore, served: Served) -> HttpServer:
    """Return the control service: tickets, and what the daemon did."""
    tickets = Tickets(
        store,
        inactivity_timeout=config.daemon.inactivity_timeout,
        remove_timeout=config.control.remove_timeout,
    )
    routes = Routes(
        {"/tickets/": tickets.collection(), "/tickets/{}": tickets.resource(), "/status": Status(served).resource()}
    )
    return HttpServer(
        routes,
        inactivity_timeout=config.daemon.inactivity_timeout,
        # Of its own: clients that use up the other one must not keep the manager out.
        limit=ConnectionLimit(config.daemon.max_total_connections),
        trusts=True,  # who may connect may do all
        served=served,
        services=("control", "control"),
    )


async def _info(_: web.Request) -> web.Response:
    return json_response({"version": __version__})


async def _continue_later(_: web.Request) -> None:
    """Send no 100 Continue yet: the request is not authorised."""


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
