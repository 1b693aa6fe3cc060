# SPDX-License-Identifier: Apache-2.0
"""The image of a ticket: which storage opens it, and what identifies it."""

from .config.config import Config
from .errors import Error
from .net import tls_contexts
from .storage.backend import Backend
from .storage.file.backend import FileBackend
from .storage.file.engine import Engine
from .storage.http.backend import HttpBackend
from .storage.nbd.backend import NbdBackend
from .storage.nbd.handshake import Options
from .storage.qemu.backend import Image, ManagedBackend, Server
from .storage.qemu.rbd import RbdBackend, RbdImage
from .transfers.ticket import Access, Ticket


class Opener:
    """Open the images of tickets. Loads the certificates for other servers. Raises ConfigError if it cannot."""

    def __init__(self, config: Config) -> None:
        self._config = config
        nbd = config.backend_nbd
        self._peer_tls = tls_contexts.client_context(config.backend_http.ca_file or config.tls.ca_file)
        self._nbd_tls = tls_contexts.client_context(nbd.ca_file or config.tls.ca_file, nbd.cert_file, nbd.key_file)

    async def open(self, engine: Engine, ticket: Ticket) -> Backend:
        """Open the image of a ticket. Raises Error."""
        writable = ticket.may(Access.WRITE)
        nbd, config = ticket.nbd, self._config.backend_nbd
        options = Options(
            dirty=ticket.dirty,
            context=self._nbd_tls if nbd is not None and nbd.tls else None,
            timeout=config.timeout,
            greeting_timeout=config.timeout,
        )
        shared = ticket.shared or not self._config.backend_file.lock
        if nbd is not None:
            return await NbdBackend.open(nbd, options, connections=config.connections, writable=writable)
        run_dir = self._config.daemon.run_dir
        if ticket.rbd is not None:
            ceph = self._config.backend_rbd
            since = ticket.since if ticket.dirty else None
            there = RbdImage(ticket.rbd, ceph.conf, ceph.user, ceph.allowed_pools, since)
            return await RbdBackend.start(there, options, Server(run_dir, config.connections, writable))
        if ticket.format != "raw":
            image = Image(ticket.path, ticket.format, ticket.backing_chain, config.allowed_paths, ticket.bitmap, shared)
            return await ManagedBackend.start(
                engine, image, options, run_dir=run_dir, connections=config.connections, writable=writable
            )
        if ticket.http is not None:
            most = self._config.daemon.max_connections
            return await HttpBackend.open(ticket.http, context=self._peer_tls, max_connections=most)
        return await FileBackend.open(engine, ticket.path, writable=writable, shared=shared)

    async def identify(self, engine: Engine, ticket: Ticket) -> object:
        """Return the identity of a ticket's image (BackendInfo.identity); None: it is unknown."""
        if not ticket.path.startswith("/"):
            return None  # the image is on another server
        try:
            backend = await FileBackend.open(engine, ticket.path, writable=False)
            identity = backend.info.identity
            await backend.close()
        except Error:
            return None  # it does not exist or cannot be opened: it has no identity
        return identity
