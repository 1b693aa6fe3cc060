# SPDX-License-Identifier: Apache-2.0
"""The two services that serve images, as clients name them."""

from collections.abc import Callable
from dataclasses import dataclass

import requests
import requests.adapters
import urllib3
import urllib3.connection
import urllib3.connectionpool

from tests.support.daemon import Daemon
from tests.support.http_client import Connection, connect_unix

Connect = Callable[[], Connection]


@dataclass(frozen=True)
class Service:
    """A service for the images of a daemon: `tls` or `unix`."""

    daemon: Daemon
    name: str

    def connect(self) -> Connection:
        return self.daemon.connect(self.name)

    @property
    def origin(self) -> str:
        """The start of URLs."""
        return f"https://localhost:{self.daemon.port}" if self.name == "tls" else "http://localhost"

    @property
    def curl(self) -> list[str]:
        """The curl command that reaches the service."""
        way = (
            ["--cacert", str(self.daemon.cafile)] if self.name == "tls" else ["--unix-socket", self.daemon.local_socket]
        )
        return ["curl", "--silent", "--show-error", "--max-time", "60", *way]

    def session(self) -> requests.Session:
        """Return a requests session that reaches the service."""
        session = requests.Session()
        session.trust_env = False
        session.verify = str(self.daemon.cafile)
        if self.name == "unix":
            session.mount("http://", _UnixAdapter(self.daemon.local_socket))
        return session


class _UnixConnection(urllib3.connection.HTTPConnection):
    def __init__(self, address: str) -> None:
        super().__init__("localhost")
        self._address = address

    def connect(self) -> None:
        self.sock = connect_unix(self._address)


class _UnixPool(urllib3.connectionpool.HTTPConnectionPool):
    def __init__(self, address: str) -> None:
        super().__init__("localhost")
        self._address = address

    def _new_conn(self) -> _UnixConnection:
        return _UnixConnection(self._address)


class _UnixAdapter(requests.adapters.HTTPAdapter):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._pool = _UnixPool(address)

    def get_connection_with_tls_context(self, *_: object, **__: object) -> _UnixPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
