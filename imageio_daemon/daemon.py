# SPDX-License-Identifier: Apache-2.0
"""The composition root: creates all objects from the configuration, runs them, and ends them in order."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import uvloop

from .config.config import Config
from .frontends.http.resources.local import LocalService
from .frontends.http.resources.page import Page
from .frontends.http.server import control_server, images_server, metrics_server
from .frontends.nbd.server import nbd_servers, upgraded_servers
from .lanes.shared import Lanes
from .lifecycle import memory_shares
from .lifecycle.health import Health, Liveness
from .lifecycle.metrics import Exposition, Watched
from .lifecycle.reloading import Reloading, changeable
from .lifecycle.supervision import Supervision
from .lifecycle.user import become, state_path
from .lifecycle.watching import watch_degraded, watch_expired, watch_host, watch_transfers
from .net import tls_contexts
from .net.connection_limits import ConnectionLimits
from .net.service_sockets import ServiceSockets
from .net.serving import Acceptor, Server, Serving
from .operations.finalize import Finalizer
from .operations.hashing import Hashing, default_threads
from .operations.opener import Opener
from .runtime import descriptors, logs
from .runtime.audit_log import AuditLog
from .runtime.background import tell_failure
from .runtime.degraded import Degraded, Feature
from .runtime.logs import LogLevel
from .runtime.state import StateWatch
from .runtime.sums import Served
from .storage.buffers import BufferPool
from .storage.engine import Engine, async_io_error
from .storage.nbd import leftovers
from .transfers.durable_records import DurableRecords
from .transfers.rate_limits import RateLimits
from .transfers.store import TransferStore
from .transfers.ticket import Ticket

log = logging.getLogger(__name__)

#: Connections that one ticket may have at once, for each one of max_connections.
CONNECTIONS_FACTOR = 4
#: Seconds after shutdown_timeout for what it has interrupted: requests are answered, images flushed and closed.
ENDING_TIMEOUT = 8.0
#: Seconds of these after which the connections of requests that were interrupted are cut.
CUT_TIMEOUT = 3.0
#: Seconds that the state directory has at least to keep tickets at the end.
STATE_TIMEOUT = 1.0


def run(config: Config, tickets: Sequence[object], load: Callable[[], Config]) -> int:
    """Run the daemon until SIGTERM or SIGINT and return its exit status: 0, or 1 if operations did not end in time.

    `tickets` are decoded JSON tickets to install at the start, and `load` reads the configuration again for a reload.
    Raises ConfigError, and InvalidRequest for a malformed ticket, before anything is served.
    """
    daemon = Daemon(config, [_ticket(data, config) for data in tickets], load)
    return uvloop.run(daemon.main())


def _ticket(data: object, config: Config) -> Ticket:
    return Ticket.from_json(data, inactivity_timeout=config.daemon.inactivity_timeout)


class Daemon:
    """One process: its sockets, its storage engine and its transfers."""

    def __init__(self, config: Config, tickets: Sequence[Ticket], load: Callable[[], Config]) -> None:
        self._config = config
        self._connections = ConnectionLimits(config, descriptors.limit())
        self._log_level = LogLevel(config.log.level)
        self._limits = RateLimits(config.limits.rate, config.limits.tenant_rate, dict(config.limits.tenants))
        self._degraded = Degraded()
        self._supervision = Supervision(self._degraded, wanted=config.daemon.systemd_enable)
        self._load = load
        self._tickets = tickets
        self._tls = tls_contexts.ServerTls(config.tls) if config.tls.enable else None
        self._opener = Opener(config)
        self._page = Page(config.ui.operator) if config.ui.enable else None
        self._sockets = ServiceSockets(config)
        # This process has its sockets, so no other daemon uses the directory.
        leftovers.remove_directories(config.daemon.run_dir)
        self._state, self._why_no_state = become(config, self._sockets)

    async def main(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit status."""
        await self._prepare()
        listening = await self._start()
        for ticket in self._tickets:
            self._store.add(ticket)
        if self._config.daemon.systemd_enable:
            self._sockets.store()
        self._health.serves([(s.service, one) for s, one in zip(self._sockets, listening, strict=True)])
        self._degraded.look()
        self._supervision.ready(self._sockets.describe())
        if error := async_io_error():
            log.warning("the kernel refuses asynchronous I/O, threads read and write", extra=logs.fields(error=error))
        log.info("ready")
        watches = [asyncio.create_task(watch) for watch in self._watches()]
        telling = asyncio.create_task(self._lanes.records.run())
        for task in (*watches, telling):
            task.add_done_callback(tell_failure)
        await self._ends.wait()
        for watch in watches:
            watch.cancel()
        log.info("stopping")
        try:
            return await self._stop(listening)
        finally:
            telling.cancel()

    async def _prepare(self) -> None:
        """Make what all services share, with the tickets that were kept."""
        self._ends = asyncio.Event()
        self._serving = Serving()
        self._engine = Engine(self._config.backend_file.io_threads)
        self._hashing = Hashing(self._config.daemon.hash_threads or default_threads())
        self._served = Served()
        self._events = await asyncio.to_thread(AuditLog, self._state)
        self._state_watch = await asyncio.to_thread(StateWatch, self._state, self._why_no_state)
        self._records = await asyncio.to_thread(DurableRecords, self._state, wanted=bool(state_path(self._config)))
        self._store = TransferStore(
            partial(self._opener.open, self._engine),
            partial(self._opener.identify, self._engine),
            most_tickets=self._config.daemon.max_tickets,
            most_connections=CONNECTIONS_FACTOR * self._config.daemon.max_connections,
            state=self._state,
            keep_tickets=self._config.daemon.keep_tickets,
            records=self._records,
            limits=self._limits,
            events=self._events,
        )
        self._store.at_work.most = self._config.limits.transfers
        changes = changeable(self._log_level, self._limits, self._store, self._connections)
        self._reloading = Reloading(self._config, self._load, changes, self._supervision.reloading)
        self._lanes = Lanes(self._engine, memory_shares.of_lanes(self._config), self._served)
        self._liveness = Liveness(self._lanes.look)
        self._health = Health(self._store, self._liveness, self._degraded)
        self._watch_features()
        self._handle_signals()
        await asyncio.to_thread(self._store.restore)

    def _watch_features(self) -> None:
        """Watch the features that may be configured and not in force, by the object that knows of each."""
        watch = self._degraded.watch
        watch(Feature.STATE_DIR, self._state_watch.why)
        watch(Feature.TICKETS, self._store.kept_tickets.why_not_kept)
        watch(Feature.EVENTS, self._events.why_not_kept)
        watch(Feature.DURABLE, self._records.why_not_kept)
        if self._tls is not None:
            watch(Feature.CERTIFICATE, self._tls.why_not)
        watch(Feature.CONFIGURATION, self._reloading.why_not)
        watch(Feature.SOCKETS, self._sockets.why_not)
        watch(Feature.SERVICE_MANAGER, self._supervision.why_not)
        watch(Feature.FORMATS, self._opener.why_no_formats)
        watch(Feature.CEPH, self._opener.why_no_ceph)

    async def _start(self) -> list[Acceptor]:
        """Serve on all sockets."""
        servers = self._make_servers()
        await self._serving.start(set(servers.values()))
        listening: list[Acceptor] = []
        for listened in self._sockets:
            # NBD starts TLS in its negotiation, by STARTTLS.
            secure = self._tls if listened.service == "remote" else None
            most = self._connections
            server = servers[listened.service]
            listening.append(Acceptor(listened.socket, self._serving, server, secure, most.relieve, most.burst))
            log.info("listening", extra=logs.fields(service=listened.service, **listened.address))
        return listening

    def _make_servers(self) -> dict[str, Server]:
        """Return the servers, by service."""
        config, secure = self._config, self._tls
        buffers = BufferPool(memory_shares.of_buffers(config))
        local = LocalService(self._sockets.local_address, self._sockets.local_place)
        context = None if secure is None else lambda: secure.context
        handshakes, limit = self._serving.handshakes, self._connections.http
        upgraded = upgraded_servers(config, self._store, limit, self._lanes, handshakes)
        images = images_server(
            config,
            self._store,
            buffers,
            self._hashing,
            Finalizer(self._store, buffers, self._hashing),
            limit,
            self._served,
            local=local,
            peer_tls=self._opener.peer_tls,
            lanes=self._lanes,
            page=self._page,
            nbd={service: server.prepare for service, server in upgraded.items()},
        )
        made: dict[str, Server] = {"remote": images, "local": images, **self._make_observers(buffers)}
        made |= {f"{service} nbd": server for service, server in upgraded.items()}
        if config.nbd.enable:
            made["nbd"], made["nbd-local"] = nbd_servers(
                config, self._store, self._connections.nbd, context, self._lanes, handshakes
            )
        return made

    def _make_observers(self, pool: BufferPool) -> dict[str, Server]:
        """Return the servers of those who manage the daemon and watch it."""
        config = self._config
        watched = Watched(
            services=sorted({listened.service for listened in self._sockets}),
            served=self._served,
            store=self._store,
            engine=self._engine,
            pool=pool,
            lanes=self._lanes,
            limits={"http": self._connections.http} | ({"nbd": self._connections.nbd} if config.nbd.enable else {}),
            tls=self._tls,
            degraded=self._degraded,
        )
        exposition = Exposition(watched.metrics)
        seen = self._served, exposition, self._health, self._events, self._log_level, self._remote()
        control = control_server(config, self._store, self._connections.control, *seen)
        if not config.metrics.enable:
            return {"control": control}
        return {"control": control, "metrics": metrics_server(config, self._served, exposition, self._health)}

    def _remote(self) -> dict[str, object]:
        """Return what the host's administrator has to know to make links to the remote service."""
        address = next(listened.address for listened in self._sockets if listened.service == "remote")
        return {"port": address["port"], "tls": self._tls is not None, "ui": self._page is not None}

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ends.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, self._store.begin_drain)

    def _reload(self) -> None:
        """Load the certificate again, and the options that can change."""
        if self._tls is not None:
            self._tls.renew()
        self._reloading.want()

    def _watches(self) -> Sequence[Coroutine[None, None, None]]:
        """Return what goes on until the end."""
        transfers = watch_transfers(self._store, self._records, self._still_draining)
        status = self._supervision.watch_status(self._store, self._served)
        life = self._supervision.watch_life(self._liveness)
        expired = watch_expired(self._store, self._config.daemon.purge_expired)
        host, degraded = watch_host(self._tls, self._engine), watch_degraded(self._degraded)
        return host, degraded, transfers, expired, self._reloading.run(), status, life

    def _still_draining(self, left: int) -> None:
        """Tell the service manager how many transfers are left, and end after the last one."""
        self._supervision.status(f"draining: {left} transfers go on")
        if not left:
            self._ends.set()

    async def _stop(self, listening: Sequence[Acceptor]) -> int:
        timeout = self._reloading.config.daemon.shutdown_timeout
        self._supervision.stopping(timeout + ENDING_TIMEOUT + 4 * STATE_TIMEOUT)
        deadline = asyncio.get_running_loop().time() + timeout + ENDING_TIMEOUT
        self._sockets.remove()
        for listener in listening:
            listener.close()
        ended = False
        try:
            async with asyncio.timeout_at(deadline):
                await self._serving.finish(timeout)
                self._store.interrupt()
                await self._serving.stop(CUT_TIMEOUT)
                await asyncio.to_thread(self._hashing.stop)
                await self._store.close()
                await self._engine.release()
                ended = True
        except TimeoutError:
            log.error("requests did not end within %d s", timeout + ENDING_TIMEOUT)
            self._store.kept_tickets.renew(at_end=True)  # as interrupt() does, which may not have had its turn
        left = deadline - asyncio.get_running_loop().time()
        hung = self._engine.stop(max(0.0, left))
        self._lanes.records.tell()
        if self._lanes.alive:  # storage hangs
            log.warning("%d connections are left", len(self._lanes.alive))
        kept = self._store.kept_tickets.close(max(STATE_TIMEOUT, deadline - asyncio.get_running_loop().time()))
        kept = self._events.close(STATE_TIMEOUT) and kept
        kept = self._state_watch.close(STATE_TIMEOUT) and kept
        if self._state is not None and ended and kept and not self._records.working:  # otherwise a thread still uses it
            self._state.close()
        for operation in hung:
            log.error("storage operation does not end: %s", operation)
        log.info("stopped")
        return 1 if hung or left <= 0 else 0
