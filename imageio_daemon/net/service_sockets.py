# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of all services: opened as the configuration says, given to the user, removed at the end."""

import os
import secrets
import socket
from collections.abc import Iterator
from typing import NamedTuple

from ..config.config import Config
from ..service import privileges
from .listening import listen_localhost, listen_tcp, listen_unix, remove_unix

#: The control socket is for its owner and its group.
CONTROL_MODE = 0o660


class ServiceSocket(NamedTuple):
    """A listening socket. service: remote, local, nbd, nbd-local or control, which may have two."""

    service: str
    socket: socket.socket

    @property
    def address(self) -> dict[str, object]:
        """Return the address for the log. Of TCP: address and port; of a unix socket: address, "@" for a NUL."""
        name = self.socket.getsockname()
        if self.socket.family == socket.AF_UNIX:
            return {"address": os.fsdecode(name).replace("\0", "@", 1)}
        return {"address": name[0], "port": name[1]}


class ServiceSockets:
    """The listening sockets of one daemon, whose run_dir is created. Raises ConfigError if one cannot be opened."""

    def __init__(self, config: Config) -> None:
        self._config = config
        #: The address of the local service, an abstract one with its leading NUL; None: it is disabled.
        self.local_address = _local_address(config)
        self._nbd_address = _unix_address(config.nbd.socket) if config.nbd.enable else ""
        self._control_address = _control_address(config)
        self._sockets = self._open()

    def __iter__(self) -> Iterator[ServiceSocket]:
        return iter(self._sockets)

    def give(self, identity: privileges.Identity) -> None:
        """Make the user the owner of run_dir and of the paths of sockets whose mode is not for everybody."""
        privileges.give(self._config.daemon.run_dir, identity)
        for address in (self._control_address, self._nbd_address):
            if address and not address.startswith("\0"):
                privileges.give(address, identity)

    def remove(self) -> None:
        """Remove the paths. Called before the sockets are closed: after that another daemon may have the paths."""
        for address in (self.local_address, self._nbd_address, self._control_address):
            if address:
                remove_unix(address)

    def describe(self) -> str:
        """Return service and address of each socket, for people; with port 0 in the configuration, the port in use."""
        places = ((service.service, service.address.values()) for service in self._sockets)
        return ", ".join(f"{service} on {' port '.join(map(str, place))}" for service, place in places)

    def _open(self) -> list[ServiceSocket]:
        config = self._config
        os.makedirs(config.daemon.run_dir, mode=0o755, exist_ok=True)
        sockets = [ServiceSocket("remote", listen_tcp(config.remote.host, config.remote.port))]
        if self.local_address is not None:
            sockets.append(ServiceSocket("local", listen_unix(self.local_address, config.local.mode)))
        if config.nbd.enable and config.nbd.port >= 0:
            sockets.append(ServiceSocket("nbd", listen_tcp(config.nbd.host, config.nbd.port)))
        if self._nbd_address:
            sockets.append(ServiceSocket("nbd-local", listen_unix(self._nbd_address, config.nbd.mode)))
        if self._control_address:
            sockets.append(ServiceSocket("control", listen_unix(self._control_address, CONTROL_MODE)))
        elif config.control.enable:
            sockets += [ServiceSocket("control", sock) for sock in listen_localhost(config.control.port)]
        return sockets


def _local_address(config: Config) -> str | None:
    """Return the address of the local service. Without a configured one it is random: nobody can take it before."""
    if not config.local.enable:
        return None
    return _unix_address(config.local.socket or f"@imageio-daemon-{secrets.token_hex(8)}")


def _control_address(config: Config) -> str:
    """Return the path of the control socket; "" if the control service is disabled or on TCP."""
    if not config.control.enable or config.control.transport != "unix":
        return ""
    return config.control.socket or os.path.join(config.daemon.run_dir, "sock")


def _unix_address(text: str) -> str:
    return "\0" + text[1:] if text.startswith("@") else text
