# SPDX-License-Identifier: Apache-2.0
"""The composition root: creates all objects from the configuration, runs them, and ends them in order."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import uvloop

from . import memory
from .config.config import Config
from .frontends.http.resources.page import Page
from .frontends.http.server import control_server, images_server, metrics_server
from .frontends.nbd.server import nbd_servers
from .lanes.shared import Lanes
from .monitoring.exposition import Exposition
from .monitoring.health import Health
from .monitoring.liveness import Liveness
from .monitoring.metrics import Metrics
from .monitoring.watched import Watched
from .net import tls_contexts
from .net.accepting import Endpoint, Listener, listen
from .net.connection_limit import ConnectionLimit
from .net.loops import Server, ServingLoop, default_count, serving_loops
from .net.service_sockets import ServiceSockets
from .opening import Opener
from .operations.finalize import Finalizer
from .operations.hashing import Hashing, default_threads
from .reloading import Reloading
from .service import logs
from .service.events import Events
from .service.log_level import LogLevel
from .service.notifying import Notifier
from .service.served import Served
from .storage.buffers import BufferPool
from .storage.file.engine import Engine
from .storage.lending import Buffers
from .storage.qemu.process import remove_leftovers
from .supervision import Supervision
from .transfers.durable import DurableRecords
from .transfers.limits import Limits
from .transfers.notices import Notices
from .transfers.store import TransferStore
from .transfers.ticket import Ticket
from .user import become, state_path
from .watching import watch_expired, watch_host, watch_transfers

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

    tickets: decoded JSON tickets to install at the start. load: reads the configuration again, for a reload. Raises
    ConfigError, and InvalidRequest for a malformed ticket, before anything is served.
    """
    daemon = Daemon(config, [_ticket(data, config) for data in tickets], load)
    return uvloop.run(daemon.main())


def _ticket(data: object, config: Config) -> Ticket:
    return Ticket.from_json(data, inactivity_timeout=config.daemon.inactivity_timeout)


class Daemon:
    """One process: its sockets, its storage engine and its transfers."""

    def __init__(self, config: Config, tickets: Sequence[Ticket], load: Callable[[], Config]) -> None:
        self._config = config
        self._limit = ConnectionLimit(config.daemon.max_total_connections)
        self._nbd_limit = ConnectionLimit(config.nbd.max_connections)
        self._log_level = LogLevel(config.log.level)
        self._limits = Limits(config.limits.rate, config.limits.tenant_rate)
        self._supervision = Supervision(wanted=config.daemon.systemd_enable)
        self._reloading = Reloading(config, load, self._reloaded(), self._supervision.reloading)
        self._tickets = tickets
        self._tls = tls_contexts.ServerTls(config.tls) if config.tls.enable else None
        self._opener = Opener(config)
        self._page = Page() if config.ui.enable else None
        self._sockets = ServiceSockets(config)
        remove_leftovers(config.daemon.run_dir)  # this process has its sockets, so no other daemon uses the directory
        self._state = become(config, self._sockets)

    async def main(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit status."""
        await self._prepare()
        async with serving_loops(self._config.daemon.loops or default_count()) as loops:
            listening = await self._start(loops)
            for ticket in self._tickets:
                self._store.add(ticket)
            if self._config.daemon.systemd_enable:
                self._sockets.store()
            self._liveness.watch(loops)
            self._health.serves([(s.service, one) for s, one in zip(self._sockets, listening, strict=True)])
            self._supervision.ready(self._sockets.describe())
            log.info("ready", extra=logs.fields(loops=len(loops)))
            watches = [asyncio.create_task(watch) for watch in self._watches()]
            telling = asyncio.create_task(self._lanes.records.run()) if self._lanes is not None else None
            await self._ends.wait()
            for watch in watches:
                watch.cancel()
            log.info("stopping")
            try:
                return await self._stop(listening, loops)
            finally:
                if telling is not None:
                    telling.cancel()

    async def _prepare(self) -> None:
        """Make what all loops share, with the tickets that were kept."""
        self._ends = asyncio.Event()
        self._engine = Engine(self._config.backend_file.io_threads)
        self._hashing = Hashing(self._config.daemon.hash_threads or default_threads())
        self._served = Served()
        self._events = await asyncio.to_thread(Events, self._state)
        self._notifier = Notifier(self._config.control.notify)
        self._notices = Notices(self._notifier.tell, time.monotonic, wanted=self._notifier.wanted)
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
            notices=self._notices,
        )
        self._store.at_work.most = self._config.limits.transfers
        lane_memory = memory.of_lanes(self._config)
        self._lanes = Lanes(self._engine, lane_memory, self._served) if lane_memory else None
        self._liveness = Liveness(self._lanes)
        self._health = Health(self._store, self._liveness, self._tls)
        self._handle_signals()
        await asyncio.to_thread(self._store.restore)

    async def _start(self, loops: Sequence[ServingLoop]) -> list[Listener]:
        """Serve on all loops. The control service is on the first, which accepts, so no other loop delays it."""
        endpoints: dict[str, list[Endpoint]] = {}
        for loop, servers in zip(loops, self._make_servers(len(loops)), strict=True):
            await loop.start(set(servers.values()))
            for service, server in servers.items():
                endpoints.setdefault(service, []).append(Endpoint(loop, server))
        listening = []
        for listened in self._sockets:
            # NBD starts TLS in its negotiation, by STARTTLS.
            secure = self._tls if listened.service == "remote" else None
            listening.append(await listen(listened.socket, endpoints[listened.service], secure))
            log.info("listening", extra=logs.fields(service=listened.service, **listened.address))
        return listening

    def _make_servers(self, loops: int) -> list[dict[str, Server]]:
        """Return the servers of each loop, by service."""
        config, secure = self._config, self._tls
        pool = BufferPool(memory.of_buffers(config))
        buffers = Buffers(pool, config.backend_file.buffer_size)
        local = self._sockets.local_address
        context = None if secure is None else lambda: secure.context
        finalizer = Finalizer(self._store, buffers, self._hashing)
        made: list[dict[str, Server]] = []
        for _ in range(loops):
            images = images_server(
                config,
                self._store,
                buffers,
                self._hashing,
                finalizer,
                self._limit,
                self._served,
                unix_socket=local,
                lanes=self._lanes,
                page=self._page,
            )
            made.append({"remote": images, "local": images})
            if config.nbd.enable and self._lanes is not None:
                nbd, nbd_local = nbd_servers(config, self._store, self._nbd_limit, context, self._lanes)
                made[-1] |= {"nbd": nbd, "nbd-local": nbd_local}
        made[0] |= self._make_observers(pool)
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
            limits={"http": self._limit} | ({"nbd": self._nbd_limit} if config.nbd.enable else {}),
            tls=self._tls,
            notifier=self._notifier,
        )
        exposition = Exposition(Metrics(watched))
        control = control_server(
            config, self._store, self._served, exposition, self._health, self._events, self._log_level, self._remote()
        )
        if not config.metrics.enable:
            return {"control": control}
        return {"control": control, "metrics": metrics_server(config, self._served, exposition, self._health)}

    def _remote(self) -> dict[str, object]:
        """Return what the host's administrator has to know to make links to the remote service."""
        address = next(listened.address for listened in self._sockets if listened.service == "remote")
        return {"port": address["port"], "tls": self._tls is not None, "ui": self._page is not None}

    def _reloaded(self) -> dict[tuple[str, str], Callable[[Any], None]]:
        """Return what changes the options of a running daemon."""
        return {
            ("log", "level"): self._log_level.configure,
            ("daemon", "max_tickets"): lambda most: setattr(self._store, "most_tickets", most),
            ("daemon", "max_total_connections"): lambda most: setattr(self._limit, "most", most),
            ("daemon", "shutdown_timeout"): lambda _: None,  # looked up at the end
            ("limits", "transfers"): lambda most: setattr(self._store.at_work, "most", most),
            ("limits", "rate"): self._limits.set_rate,
            ("limits", "tenant_rate"): self._limits.set_tenant_rate,
            ("nbd", "max_connections"): lambda most: setattr(self._nbd_limit, "most", most),
        }

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
        transfers = watch_transfers(self._store, self._records, self._notices, self._still_draining)
        status = self._supervision.watch_status(self._store, self._served)
        life = self._supervision.watch_life(self._liveness)
        expired = watch_expired(self._store, self._config.daemon.purge_expired)
        return watch_host(self._tls, self._engine), transfers, expired, self._reloading.run(), status, life

    def _still_draining(self, left: int) -> None:
        """Tell the service manager how many transfers are left, and end after the last one."""
        self._supervision.status(f"draining: {left} transfers go on")
        if not left:
            self._ends.set()

    async def _stop(self, listening: Sequence[Listener], loops: Sequence[ServingLoop]) -> int:
        timeout = self._reloading.config.daemon.shutdown_timeout
        self._supervision.stopping(timeout + ENDING_TIMEOUT + 3 * STATE_TIMEOUT)
        deadline = asyncio.get_running_loop().time() + timeout + ENDING_TIMEOUT
        self._sockets.remove()
        for listener in listening:
            listener.close()
        ended = False
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(loop.finish(timeout) for loop in loops))
                self._store.interrupt()
                await asyncio.gather(*(loop.stop(CUT_TIMEOUT) for loop in loops))
                await asyncio.to_thread(self._hashing.stop)
                await self._store.close()
                await asyncio.gather(*(loop.run(self._engine.release_loop()) for loop in loops))
                ended = True
        except TimeoutError:
            log.error("requests did not end within %d s", timeout + ENDING_TIMEOUT)
            self._store.keeping.renew(at_end=True)  # as interrupt() does, which may not have had its turn
        left = deadline - asyncio.get_running_loop().time()
        hung = self._engine.stop(max(0.0, left))
        if self._lanes is not None:
            self._lanes.records.tell()
            if self._lanes.alive:  # storage hangs
                log.warning("%d connections are left", len(self._lanes.alive))
        kept = self._store.keeping.close(max(STATE_TIMEOUT, deadline - asyncio.get_running_loop().time()))
        kept = self._events.close(STATE_TIMEOUT) and kept
        await asyncio.to_thread(self._notifier.close, STATE_TIMEOUT)
        if self._state is not None and ended and kept and not self._records.working:  # otherwise a thread still uses it
            self._state.close()
        for operation in hung:
            log.error("storage operation does not end: %s", operation)
        log.info("stopped")
        return 1 if hung or left <= 0 else 0
