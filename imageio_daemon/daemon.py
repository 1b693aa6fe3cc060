# SPDX-License-Identifier: Apache-2.0
"""The composition root: makes everything of the configuration, runs it, and ends it in order."""

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Sequence

import uvloop

from . import logs, privileges, systemd, tls
from .buffers import BufferPool, Buffers
from .checksum import Hashing
from .config import Config
from .connectionlimit import ConnectionLimit
from .errors import Error
from .frontends.http.app import control_server, images_server
from .frontends.nbd.server import nbd_servers
from .loops import Endpoint, Listener, Server, ServingLoop, default_count, listen, serving_loops
from .sockets import listen_localhost, listen_tcp, listen_unix, remove_unix
from .storage.base import Backend
from .storage.engine import Engine
from .storage.file import FileBackend
from .storage.http import HttpBackend
from .storage.lane import MIN_LANE_MEMORY, Lanes
from .storage.managed import Image, ManagedBackend
from .storage.nbd import NbdBackend
from .storage.nbdhandshake import Options
from .storage.qemunbd import remove_leftovers
from .tickets import Access, Ticket
from .transferstore import TransferStore

log = logging.getLogger(__name__)

#: Connections that one ticket may have at once, for each that it is told to use.
CONNECTIONS_FACTOR = 4
#: One part in so many of buffer_memory is not lent, for what TLS holds of data on its way: about 0.5 MiB for each busy
#: connection. With nothing kept back, 64 TLS uploads peaked at 237 MiB RSS with buffer_memory = 128M.
TRANSPORT_SHARE = 8
#: One part in so many of buffer_memory is that of the lanes, where there are some.
LANE_SHARE = 4
#: Seconds between looks at the certificate and the storage.
WATCH_INTERVAL = 30.0
#: Seconds between looks for tickets that have expired. Their images are closed at the second look, when C has given
#: idle connections back. A look at 10,000 tickets whose images are open takes 10 ms.
EXPIRY_INTERVAL = 2.0
#: Storage operations that take longer are named in the log, in seconds. Healthy ones of a few MiB take some ms.
HANGING = 30.0


def run(config: Config, tickets: Sequence[object] = ()) -> int:
    """Run the daemon until SIGTERM or SIGINT and return its exit status.

    tickets: decoded JSON tickets to install at the start. 1: operations did not end in time. Raises ConfigError,
    InvalidRequest (a bad ticket) before anything is served.
    """
    daemon = Daemon(config, [_ticket(data, config) for data in tickets])
    return uvloop.run(daemon.main())


def _ticket(data: object, config: Config) -> Ticket:
    return Ticket.from_json(data, inactivity_timeout=config.daemon.inactivity_timeout)


class Daemon:
    """One process: its sockets, its storage engine and its transfers."""

    def __init__(self, config: Config, tickets: Sequence[Ticket]) -> None:
        self._config = config
        self._tickets = tickets
        self._local_address = _local_address(config)
        self._nbd_address = _unix_address(config.nbd.socket) if config.nbd.enable else ""
        self._control_address = config.control.socket or os.path.join(config.daemon.run_dir, "sock")
        self._tls = tls.ServerTls(config.tls) if config.tls.enable else None
        self._peer_tls = tls.client_context(config.backend_http.ca_file or config.tls.ca_file)
        nbd = config.backend_nbd
        self._nbd_tls = tls.client_context(nbd.ca_file or config.tls.ca_file, nbd.cert_file, nbd.key_file)
        self._sockets = self._open_sockets()
        remove_leftovers(config.daemon.run_dir)  # with its sockets open nobody else uses the directory
        self._drop_privileges()

    async def main(self) -> int:
        """Serve until told to stop; return the exit status."""
        stop = self._handle_signals()
        self._engine = Engine(self._config.backend_file.io_threads)
        self._hashing = Hashing()
        self._store = TransferStore(
            self._open_backend,
            self._identify,
            most_tickets=self._config.daemon.max_tickets,
            most_connections=CONNECTIONS_FACTOR * self._config.daemon.max_connections,
        )
        async with serving_loops(self._config.daemon.loops or default_count()) as loops:
            listening = await self._start(loops)
            for ticket in self._tickets:
                self._store.add(ticket)
            self._notify(f"READY=1\nSTATUS={self._status()}")
            log.info("ready", extra=logs.fields(loops=len(loops)))
            watches = [asyncio.create_task(self._watch()), asyncio.create_task(self._watch_expiry())]
            await stop.wait()
            for watch in watches:
                watch.cancel()
            log.info("stopping")
            self._notify("STOPPING=1")
            return await self._stop(listening, loops)

    # Start

    def _open_sockets(self) -> list[tuple[str, socket.socket]]:
        config = self._config
        os.makedirs(config.daemon.run_dir, mode=0o755, exist_ok=True)
        sockets = [("remote", listen_tcp(config.remote.host, config.remote.port))]
        if config.local.enable:
            sockets.append(("local", listen_unix(self._local_address, config.local.mode)))
        if config.nbd.enable and config.nbd.port >= 0:
            sockets.append(("nbd", listen_tcp(config.nbd.host, config.nbd.port)))
        if self._nbd_address:
            sockets.append(("nbd-local", listen_unix(self._nbd_address, config.nbd.mode)))
        if config.control.enable and config.control.transport == "unix":
            sockets.append(("control", listen_unix(self._control_address, 0o660)))
        elif config.control.enable:
            sockets += [("control", sock) for sock in listen_localhost(config.control.port)]
        return sockets

    def _drop_privileges(self) -> None:
        config = self._config
        if not config.daemon.drop_privileges or os.geteuid() != 0:
            return
        identity = privileges.lookup(config.daemon.user_name, config.daemon.group_name)
        privileges.give(config.daemon.run_dir, identity)
        if config.control.enable and config.control.transport == "unix":
            privileges.give(self._control_address, identity)
        if self._nbd_address and not self._nbd_address.startswith("\0"):
            privileges.give(self._nbd_address, identity)
        privileges.drop(identity)

    async def _start(self, loops: Sequence[ServingLoop]) -> list[Listener]:
        """Serve on all loops; the control service on the first, which accepts, so that nothing is between."""
        endpoints: dict[str, list[Endpoint]] = {}
        for loop, servers in zip(loops, self._make_servers(len(loops)), strict=True):
            await loop.start(set(servers.values()))
            for service, server in servers.items():
                endpoints.setdefault(service, []).append(Endpoint(loop, server))
        listening = []
        for service, sock in self._sockets:
            # TLS of NBD starts on demand.
            secure = self._tls if service == "remote" else None
            listening.append(await listen(sock, endpoints[service], secure))
            log.info("listening", extra=logs.fields(service=service, **_address(sock)))
        return listening

    def _make_servers(self, loops: int) -> list[dict[str, Server]]:
        """Return the servers of each loop, by service."""
        config, secure = self._config, self._tls
        memory = config.daemon.buffer_memory
        lane_memory = self._lane_memory()
        self._lanes = Lanes(self._engine, lane_memory) if lane_memory else None
        pool = BufferPool(memory - memory // TRANSPORT_SHARE - lane_memory)
        buffers = Buffers(pool, config.backend_file.buffer_size)
        local = self._local_address if config.local.enable else None
        limit = ConnectionLimit(config.daemon.max_total_connections)
        nbd_limit = ConnectionLimit(config.nbd.max_connections)
        context = None if secure is None else lambda: secure.context
        made: list[dict[str, Server]] = []
        for _ in range(loops):
            images = images_server(
                config, self._store, buffers, self._hashing, limit, unix_socket=local, lanes=self._lanes
            )
            nbd_lanes = self._lanes if config.nbd.fast_lane else None
            nbd, nbd_local = nbd_servers(config, self._store, buffers, nbd_limit, context, nbd_lanes)
            made.append({"remote": images, "local": images, "nbd": nbd, "nbd-local": nbd_local})
        made[0]["control"] = control_server(config, self._store)
        return made

    def _lane_memory(self) -> int:
        """Return the memory of lanes; 0: there are none, because none of the services has connections for them."""
        config = self._config
        memory = config.daemon.buffer_memory // LANE_SHARE
        images = config.remote.fast_lane
        plain = self._nbd_address or (config.nbd.port >= 0 and config.nbd.tls != "required")
        nbd = config.nbd.enable and config.nbd.fast_lane and plain
        return memory if (images or nbd) and memory >= MIN_LANE_MEMORY else 0

    def _handle_signals(self) -> asyncio.Event:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._renew_certificate)
        return stop

    async def _open_backend(self, ticket: Ticket) -> Backend:
        writable = ticket.may(Access.WRITE)
        nbd, config = ticket.nbd, self._config.backend_nbd
        options = Options(
            dirty=ticket.dirty,
            context=self._nbd_tls if nbd is not None and nbd.tls else None,
            timeout=config.timeout,
            greeting_timeout=config.timeout,
        )
        if nbd is not None:
            return await NbdBackend.open(nbd, options, connections=config.connections, writable=writable)
        if ticket.format != "raw":
            image = Image(ticket.path, ticket.format, ticket.backing_chain, config.allowed_paths, ticket.bitmap)
            run_dir = self._config.daemon.run_dir
            return await ManagedBackend.start(
                image, options, run_dir=run_dir, connections=config.connections, writable=writable
            )
        if ticket.http is not None:
            most = self._config.daemon.max_connections
            return await HttpBackend.open(ticket.http, context=self._peer_tls, max_connections=most)
        return await FileBackend.open(self._engine, ticket.path, writable=writable)

    async def _identify(self, ticket: Ticket) -> object:
        if not ticket.path.startswith("/"):
            return None  # another server has it
        try:
            backend = await FileBackend.open(self._engine, ticket.path, writable=False)
            identity = backend.info.identity
            await backend.close()
        except Error:
            return None  # nobody has it
        return identity

    # While it runs

    def _renew_certificate(self) -> None:
        if self._tls is not None:
            self._tls.renew()

    async def _watch(self) -> None:
        """Look after what nobody asks for: a renewed certificate, storage that hangs."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            if self._tls is not None:
                self._tls.renew_if_changed()
            for operation in self._engine.running():
                if operation.seconds > HANGING:
                    log.warning("storage hangs: %s", operation)

    async def _watch_expiry(self) -> None:
        """Let go of the images of expired tickets."""
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL)
            self._store.release_expired()

    # The end

    async def _stop(self, listening: Sequence[Listener], loops: Sequence[ServingLoop]) -> int:
        timeout = self._config.daemon.shutdown_timeout
        deadline = asyncio.get_running_loop().time() + timeout
        self._remove_sockets()  # as long as they are ours: after close() another daemon may take the paths
        for listener in listening:
            listener.close()
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(loop.stop(timeout) for loop in loops))
                await asyncio.to_thread(self._hashing.stop)
                await self._store.close()
                await asyncio.gather(*(loop.run(self._engine.release_loop()) for loop in loops))
        except TimeoutError:
            log.error("requests did not end within %d s", timeout)
        left = deadline - asyncio.get_running_loop().time()
        hung = self._engine.stop(max(0.0, left))
        if self._lanes is not None:
            self._lanes.free()
        for operation in hung:
            log.error("storage operation does not end: %s", operation)
        log.info("stopped")
        return 1 if hung or left <= 0 else 0

    def _remove_sockets(self) -> None:
        if self._config.local.enable:
            remove_unix(self._local_address)
        if self._nbd_address:
            remove_unix(self._nbd_address)
        if self._config.control.enable and self._config.control.transport == "unix":
            remove_unix(self._control_address)

    def _status(self) -> str:
        """Return where everything is served, for `systemctl status`: with port 0, whatever the log level."""
        places = ((service, _address(sock).values()) for service, sock in self._sockets)
        return ", ".join(f"{service} on {' port '.join(map(str, place))}" for service, place in places)

    def _notify(self, state: str) -> None:
        if self._config.daemon.systemd_enable:
            systemd.notify(state)


def _local_address(config: Config) -> str:
    """Return the local service's address, an abstract one with its leading NUL."""
    return _unix_address(config.local.socket or f"@imageio-daemon-{secrets.token_hex(8)}")


def _unix_address(text: str) -> str:
    return "\0" + text[1:] if text.startswith("@") else text


def _address(sock: socket.socket) -> dict[str, object]:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        shown = os.fsdecode(name)
        return {"address": shown.replace("\0", "@", 1)}
    return {"address": name[0], "port": name[1]}
