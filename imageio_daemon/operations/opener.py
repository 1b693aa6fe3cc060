# SPDX-License-Identifier: Apache-2.0
"""The image of a ticket: which storage opens it, and what identifies it."""

import os
import shutil

from ..config.config import Config
from ..errors import Error, Unusable
from ..image import chain
from ..image.chain import QemuImage
from ..net import tls_contexts
from ..runtime.background import in_thread
from ..storage.backend import Backend
from ..storage.engine import Engine
from ..storage.file import FileBackend
from ..storage.nbd.backend import NbdBackend
from ..storage.nbd.client_handshake import ConnectOptions
from ..storage.nbd.process import QemuServer
from ..storage.nbd.qemu_backend import ManagedBackend
from ..storage.nbd.rbd import RbdBackend, RbdImage
from ..storage.qcow2 import NotNative, Qcow2Backend
from ..transfers.ticket import Access, Ticket


class Opener:
    """Open the images of tickets. Raises ConfigError if the certificates for other servers cannot be loaded."""

    def __init__(self, config: Config) -> None:
        self._config = config
        nbd = config.backend_nbd
        #: The TLS context for requests that are passed on to other servers.
        self.peer_tls = tls_contexts.client_context(config.backend_http.ca_file or config.tls.ca_file)
        self._nbd_tls = tls_contexts.client_tls(nbd.ca_file or config.tls.ca_file, nbd.cert_file, nbd.key_file)

    def why_no_formats(self) -> str:
        """Return why qcow2 images cannot be opened, or "" if they can, or if allowed_paths is empty."""
        needed = self._config.backend_file.qcow2 == "qemu-nbd" and self._config.backend_nbd.allowed_paths
        return self._why_no_qemu() if needed else ""

    def why_no_ceph(self) -> str:
        """Return why images on Ceph cannot be opened, or "" if they can, or if allowed_pools is empty."""
        ceph = self._config.backend_rbd
        if not ceph.allowed_pools:
            return ""
        return self._why_no_qemu() or ("" if os.access(ceph.conf, os.R_OK) else "[backend_rbd] conf cannot be read")

    def _why_no_qemu(self) -> str:
        return "" if shutil.which("qemu-nbd") else "qemu-nbd is not installed"

    async def open(self, engine: Engine, ticket: Ticket) -> Backend:
        """Open the image of a ticket. Raises Error."""
        writable = ticket.may(Access.WRITE)
        nbd, config = ticket.nbd, self._config.backend_nbd
        options = ConnectOptions(
            dirty=ticket.dirty,
            context=self._nbd_tls if nbd is not None and nbd.tls else None,
            timeout=config.timeout,
            greeting_timeout=config.timeout,
        )
        shared = ticket.shared or not self._config.backend_file.lock
        if nbd is not None:
            return await NbdBackend.open(engine, nbd, options, connections=config.connections, writable=writable)
        how = QemuServer(self._config.daemon.run_dir, config.connections, writable)
        if ticket.rbd is not None:
            ceph = self._config.backend_rbd
            since = ticket.since if ticket.dirty else None
            there = RbdImage(ticket.rbd, ceph.conf, ceph.user, ceph.allowed_pools, since)
            return await RbdBackend.start(engine, there, options, how)
        if ticket.format != "raw":
            image = QemuImage(
                ticket.path, ticket.format, ticket.backing_chain, config.allowed_paths, ticket.bitmap, shared
            )
            if ticket.format == "qcow2" and self._config.backend_file.qcow2 == "native":
                try:
                    return await _open_native(engine, image, writable=writable)
                except NotNative:  # fall_back() has logged and counted it
                    pass
            return await ManagedBackend.start(engine, image, options, how)
        if ticket.proxied:
            raise Unusable(
                "Another server has the image: only HTTP requests are passed on to it", "open", ticket.shown_url
            )
        return await FileBackend.open(engine, ticket.path, writable=writable, shared=shared)

    async def identify(self, engine: Engine, ticket: Ticket) -> object:
        """Return the identity of a ticket's image (BackendInfo.identity), or None if it is unknown."""
        if not ticket.path.startswith("/"):
            return None  # the image is on another server
        try:
            backend = await FileBackend.open(engine, ticket.path, writable=False)
            identity = backend.info.identity
            await backend.close()
        except Error:
            return None  # the image does not exist or cannot be opened
        return identity


async def _open_native(engine: Engine, image: QemuImage, *, writable: bool) -> Backend:
    """Open a qcow2 image without qemu-nbd, in the engine. Raises NotNative and Error."""
    found = await in_thread(lambda: chain.inspect(image))
    return await Qcow2Backend.start(engine, found, writable=writable, shared=image.shared, bitmap=image.bitmap)
