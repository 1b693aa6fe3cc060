# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of all services: opened as configured, given to the daemon's user, removed at the end.

If the service manager stores descriptors, the sockets outlive the process, and clients that connect during a restart
wait for the next process.
"""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ..config.config import Config
from ..runtime import privileges, systemd
from .listening import address_of, listen_localhost, listen_tcp, listen_unix, remove_unix
from .passed_sockets import Fits, PassedSockets, is_abstract, is_tcp, is_unix
from .unix_places import place_of

log = logging.getLogger(__name__)

#: The control socket is for its owner and its group.
CONTROL_MODE = 0o660
#: The prefix of the local service's address, if none is configured.
_ABSTRACT = "\0imageio-daemon-"


class ServiceSocket(NamedTuple):
    """A listening socket of a service: remote, local, nbd, nbd-local, metrics or control, which may have two."""

    service: str
    socket: socket.socket

    @property
    def address(self) -> dict[str, object]:
        """Return the address for the log; see address_of()."""
        return address_of(self.socket)


class _Wanted(NamedTuple):
    """A socket that the configuration asks for. `fits` tells whether a passed socket is it; `bind` opens a new one."""

    service: str
    fits: Fits
    bind: Callable[[], socket.socket]


class ServiceSockets:
    """The listening sockets of one daemon. Creates run_dir. Raises ConfigError if a socket cannot be opened."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._nbd_address = _unix_address(config.nbd.socket) if config.nbd.enable else ""
        self._control_address = _control_address(config)
        #: Services whose sockets the service manager keeps, too.
        self._kept: set[str] = set()
        self._unserved: list[str] = []
        self._sockets = self._open()
        local = next((sock for service, sock in self._sockets if service == "local"), None)
        #: The address of the local service, if it is enabled. An abstract one has its leading NUL.
        self.local_address = None if local is None else os.fsdecode(local.getsockname())
        #: Where the address leads to, so that clients can make sure of the socket. None if that is not known.
        self.local_place = None if self.local_address is None else _known_place(self.local_address)

    def __iter__(self) -> Iterator[ServiceSocket]:
        return iter(self._sockets)

    def why_not(self) -> str:
        """Return why a socket unit is not served, or "" if there is no such unit."""
        names = ", ".join(name or "without a name" for name in self._unserved)
        return f"sockets of the service manager are not as configured: {names}" if names else ""

    def give(self, identity: privileges.Identity) -> None:
        """Make the user the owner of run_dir and of the sockets whose mode does not let everybody connect."""
        privileges.give(self._config.daemon.run_dir, identity)
        for address in (self._control_address, self._nbd_address):
            if address and not address.startswith("\0"):
                privileges.give(address, identity)

    def store(self) -> None:
        """Give the service manager copies of the sockets for the next process, unless it has them."""
        for service, sock in self._sockets:
            # A control service over TCP has two sockets, and its clients connect again by themselves.
            stays = service != "control" or sock.family == socket.AF_UNIX
            if stays and service not in self._kept and systemd.store(service, sock.fileno()):
                self._kept.add(service)

    def remove(self) -> None:
        """Remove the paths, except for those of sockets that the service manager keeps.

        Call this before the sockets are closed: after that, another daemon may have the paths.
        """
        for service, sock in self._sockets:
            if sock.family == socket.AF_UNIX and service not in self._kept:
                remove_unix(os.fsdecode(sock.getsockname()))

    def describe(self) -> str:
        """Return service and address of each socket, for people. For a configured port 0, this has the port in use."""
        places = ((service.service, service.address.values()) for service in self._sockets)
        return ", ".join(f"{service} on {' port '.join(map(str, place))}" for service, place in places)

    def _open(self) -> list[ServiceSocket]:
        config = self._config
        os.makedirs(config.daemon.run_dir, mode=0o755, exist_ok=True)
        passed = PassedSockets(systemd.take_passed() if config.daemon.systemd_enable else [])
        wanted = list(self._wanted())
        found = [passed.take(service, fits) for service, fits, _ in wanted]
        passed.drop_rest()  # before new sockets are opened, which may need an address of these
        self._unserved = passed.unserved
        sockets = []
        for (service, _, bind), sock in zip(wanted, found, strict=True):
            if sock is not None:
                self._kept.add(service)
            sockets.append(ServiceSocket(service, sock or bind()))
        if config.control.enable and not self._control_address:
            sockets += [ServiceSocket("control", sock) for sock in listen_localhost(config.control.port)]
        return sockets

    def _wanted(self) -> Iterator[_Wanted]:
        """Yield all sockets except those of a control service over TCP."""
        remote, local, nbd, metrics = self._config.remote, self._config.local, self._config.nbd, self._config.metrics
        yield _tcp("remote", remote.host, remote.port)
        if local.enable and local.socket:
            yield _unix("local", _unix_address(local.socket), local.mode)
        elif local.enable:
            # A random name, so that nobody can take it before. Clients of a socket that was kept know its name.
            name = _ABSTRACT + secrets.token_hex(8)
            yield _Wanted("local", is_abstract(_ABSTRACT), partial(listen_unix, name, local.mode))
        if nbd.enable and nbd.port >= 0:
            yield _tcp("nbd", nbd.host, nbd.port)
        if self._nbd_address:
            yield _unix("nbd-local", self._nbd_address, nbd.mode)
        if metrics.enable:
            yield _tcp("metrics", metrics.host, metrics.port)
        if self._control_address:
            yield _unix("control", self._control_address, CONTROL_MODE)


def _tcp(service: str, host: str, port: int) -> _Wanted:
    return _Wanted(service, is_tcp(host, port), partial(listen_tcp, host, port))


def _unix(service: str, address: str, mode: int) -> _Wanted:
    return _Wanted(service, is_unix(address, mode), partial(listen_unix, address, mode))


def _control_address(config: Config) -> str:
    """Return the path of the control socket, or "" if the control service is disabled or on TCP."""
    if not config.control.enable or config.control.transport != "unix":
        return ""
    return config.control.socket or os.path.join(config.daemon.run_dir, "sock")


def _known_place(address: str) -> str | None:
    try:
        return place_of(address)
    except OSError as e:
        log.warning("clients on this host can't know the local socket, and use TLS: %s", e)
        return None


def _unix_address(text: str) -> str:
    return "\0" + text[1:] if text.startswith("@") else text
