# SPDX-License-Identifier: Apache-2.0
"""The HTTP services: the resources of each, and the server that answers requests with them."""

import asyncio
import logging
import ssl
from collections.abc import Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ... import __version__
from ...config.config import Config
from ...errors import Error
from ...lanes.shared import Lanes
from ...lifecycle.health import Health
from ...lifecycle.metrics import Exposition
from ...net.admission import Admission
from ...net.connection_limit import ConnectionLimit
from ...operations.finalize import Finalizer
from ...operations.hashing import Hashing
from ...runtime.audit_log import AuditLog
from ...runtime.logs import LogLevel
from ...runtime.sums import Served
from ...storage.buffers import BufferPool
from ...transfers.store import TransferStore
from ...units import KiB
from .answering import Answering
from .connection.connection import ServerConnection
from .connection.framing import MAX_HEAD, RequestHead
from .connection.lane_service import LaneService
from .connection.sequence import HttpShared
from .headers import parse_target
from .proxy.way import all_closed
from .request import READ_BUFFER
from .resources.checksum import Checksums, list_algorithms
from .resources.control import ControlResources
from .resources.extents import Extents
from .resources.finalize import Finalize
from .resources.images import Images
from .resources.local import LocalService
from .resources.monitoring import Monitoring
from .resources.page import Page
from .resources.proxied import Proxied
from .resources.tickets import Tickets
from .resources.upgrade import Prepare, Upgrades
from .responses import json_response
from .routes import METHODS, Routes, readable

log = logging.getLogger(__name__)

#: Most bytes of one read from a socket. All connections of a server share this memory. An upload of 256 MiB through
#: aiohttp took 0.17 s of processor time on the unix socket and 0.42 s over TLS; with 32 KiB 0.28 s and 0.49 s; with
#: 256 KiB, most of which aiohttp has to keep, 0.44 s and 0.74 s.
SCRATCH = 64 * KiB
#: Seconds. This disables aiohttp's timer, which would cut a transfer that a lane serves. Connections have a timer of
#: their own.
YEARS = 10 * 365 * 24 * 3600.0
#: Most connections of the metrics service. A Prometheus server has one.
METRICS_CONNECTIONS = 32
#: The route in aiohttp that matches every path, also one with an escaped line feed.
EVERYTHING = r"/{rest:[\s\S]*}"
#: The segments of the target http://HOST, which matches no route in aiohttp.
NO_PATH = [""]


class HttpServer:
    """Serve routes on connections.

    An idle connection that has not used a ticket is closed after `inactivity_timeout` seconds. `lanes` starts lanes in
    C; a server without images has none. `limit` has the places of connections. If the server `trusts` its clients, they
    keep their places without a ticket. `served` counts requests and bytes, under the names in `services`: first that
    for clients of the network, then that for clients of the unix socket.
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
        self.admission = Admission(limit)
        self._shared = HttpShared(
            inactivity_timeout=inactivity_timeout,
            admission=self.admission,
            trusts=trusts,
            make_handler=self._make_handler,
            direct=self._direct,
            lanes=lanes,
            served=served or Served(),
            names=services,
            scratch=memoryview(bytearray(SCRATCH)),
        )
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Prepare for connections on the running loop. Call it once, before the first connection."""
        app = web.Application()
        app.router.add_route("*", EVERYTHING, self._routes.answer, expect_handler=_continue_later)
        Answering(self._routes).install(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_aiohttp_log(),
            handler_cancellation=True,  # cancel a handler when its client is gone
            keepalive_timeout=YEARS,
            lingering_time=0.0,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            auto_decompress=False,
            read_bufsize=READ_BUFFER,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()

    def connection(self) -> ServerConnection:
        """Return the protocol of a new connection."""
        return ServerConnection(self._shared)

    async def finish(self, timeout: float) -> None:
        """Refuse new requests, close idle connections, and wait at most `timeout` seconds for running requests."""
        await self.admission.finish(timeout)

    async def stop(self, timeout: float) -> None:
        """Do as finish(). Then, or when the wait is cancelled, cut the connections whose requests still run."""
        try:
            if not await self.admission.finish(timeout):
                log.warning("%d requests are cut off", self.admission.count)
        finally:
            self.admission.cut_off()
        if self._runner is not None:
            await self._runner.cleanup()
        await all_closed()

    def _make_handler(self) -> asyncio.Protocol:
        server = self._runner.server if self._runner is not None else None
        if server is None:
            raise RuntimeError("the server was not started")
        return server()

    def _direct(self, head: RequestHead) -> web.Response | Exception | None:
        """Return the answer to a request whose method or path aiohttp does not know, or None if aiohttp can answer it.

        It is an error, or for `OPTIONS *` the methods of the server, which need no ticket (RFC 9110 9.3.7).
        """
        if (head.method, head.target) == ("OPTIONS", "*"):
            return web.Response(headers={"Allow": ",".join(self._routes.allow)})
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
    buffers: BufferPool,
    hashing: Hashing,
    finalizer: Finalizer,
    limit: ConnectionLimit,
    served: Served,
    *,
    local: LocalService,
    peer_tls: ssl.SSLContext,
    lanes: Lanes,
    page: Page | None,
    nbd: Mapping[str, Prepare],
) -> HttpServer:
    """Return the server of the remote and local services: images, the version of the daemon, the page for browsers.

    `peer_tls` is for connections to other servers of the images API. `page` is None if it is disabled. `nbd` prepares,
    for each service, connections that change to NBD.
    """
    finalize = Finalize(store, finalizer)
    images = Images(
        store,
        buffers,
        finalize.patch,
        max_connections=config.daemon.max_connections,
        local=local,
    )
    proxied = Proxied(store, images, peer_tls, max_connections=config.daemon.max_connections, local=local)
    routes = Routes(
        {
            "/images/{}": proxied.images(Upgrades(store, nbd).images(images.resource())),
            "/images/{}/extents": proxied.around(readable(Extents(store).get), {"GET": proxied.get_extents}),
            "/images/{}/finalize": proxied.around(readable(finalize.get), {"GET": proxied.get_finalize}),
            "/images/{}/checksum": proxied.around(
                readable(Checksums(store, buffers, hashing).get), {"GET": proxied.get_checksum}
            ),
            "/images/{}/checksum/algorithms": readable(list_algorithms),
            "/local/{}": local.resource(),
            "/info/": readable(_info),
            **(page.resources() if page is not None else {}),
        }
    )
    return HttpServer(
        routes,
        lanes=LaneService(store, lanes),
        inactivity_timeout=config.daemon.inactivity_timeout,
        limit=limit,
        served=served,
    )


def control_server(
    config: Config,
    store: TransferStore,
    limit: ConnectionLimit,
    served: Served,
    exposition: Exposition,
    health: Health,
    events: AuditLog,
    log_level: LogLevel,
    remote: Mapping[str, object],
) -> HttpServer:
    """Return the server of the control service: tickets, events, the log, limits, counters, metrics and health.

    `remote` says how clients reach the remote service; see ControlResources.
    """
    tickets = Tickets(
        store,
        inactivity_timeout=config.daemon.inactivity_timeout,
        remove_timeout=config.control.remove_timeout,
    )
    routes = Routes(
        {
            "/tickets/": tickets.collection(),
            "/tickets/{}": tickets.resource(),
            **ControlResources(store, served, events, log_level, remote).resources(),
            **Monitoring(exposition, health, trusts=True).resources(),
        }
    )
    return HttpServer(
        routes,
        inactivity_timeout=config.daemon.inactivity_timeout,
        limit=limit,
        trusts=True,  # clients of the control service have no ticket
        served=served,
        services=("control", "control"),
    )


def metrics_server(config: Config, served: Served, exposition: Exposition, health: Health) -> HttpServer:
    """Return the server of metrics and health checks. If it has METRICS_CONNECTIONS, a new one closes the oldest."""
    return HttpServer(
        Routes(Monitoring(exposition, health, trusts=False).resources()),
        inactivity_timeout=config.daemon.inactivity_timeout,
        limit=ConnectionLimit(METRICS_CONNECTIONS),
        served=served,
        services=("metrics", "metrics"),
    )


async def _info(_: web.Request) -> web.Response:
    return json_response({"version": __version__})


async def _continue_later(_: web.Request) -> None:
    """Send no 100 Continue yet: RequestBody.read() sends it after the request is authorised (RFC 9110 10.1.1)."""


class _Quiet(logging.Filter):
    """Remove the details of requests that aiohttp cannot parse from the log: their text may contain the ticket id."""

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
