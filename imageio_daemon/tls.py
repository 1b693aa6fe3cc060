# SPDX-License-Identifier: Apache-2.0
"""TLS: the server's context, renewed while transfers run, and that of connections to other servers."""

import logging
import os
import ssl

from .config import Tls
from .errors import ConfigError

log = logging.getLogger(__name__)

#: A handshake that takes longer is given up, in seconds: a peer may hold a connection without a word.
HANDSHAKE_TIMEOUT = 10.0
#: How long a connection that we close waits for the peer's farewell, in seconds. Ours is sent at once; an idle client
#: that does not look at its socket would hold up the end of the daemon (uvloop's default is 30 s).
SHUTDOWN_TIMEOUT = 1.0

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ServerTls:
    """Hold the context that listening sockets use.

    Renewal loads the new certificate into the same context: new handshakes see it, running connections do not notice.
    """

    def __init__(self, config: Tls) -> None:
        self._config = config
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_mode = _CLIENT_AUTH[config.client_auth]
        # Transfers are long and keep their connections: renegotiation is only an attack.
        self.context.options |= ssl.OP_NO_RENEGOTIATION
        if self.context.verify_mode is not ssl.CERT_NONE:
            self._load_ca(config.ca_file)
        self._load()
        self._seen = self._stamp()

    def renew(self) -> None:
        """Load certificate and key again; when that fails the old ones stay and the log says why."""
        self._seen = self._stamp()
        try:
            # A pair that does not match must not half replace the one in use: try it on a context of its own.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._config.cert_file, self._config.key_file)
            self._load()
        except (ConfigError, OSError) as e:
            log.error("cannot renew the certificate, the old one stays in use: %s", e)
        else:
            log.info("certificate renewed from %s", self._config.cert_file)

    def renew_if_changed(self) -> None:
        """Renew when a file is another one than last time."""
        if self._stamp() != self._seen:
            self.renew()

    def _load(self) -> None:
        try:
            self.context.load_cert_chain(self._config.cert_file, self._config.key_file)
        except OSError as e:
            raise ConfigError(
                f"[tls] cannot load cert_file {self._config.cert_file} with key_file {self._config.key_file}: {e}"
            ) from None

    def _load_ca(self, ca_file: str) -> None:
        try:
            self.context.load_verify_locations(ca_file)
        except OSError as e:
            raise ConfigError(f"[tls] cannot load ca_file {ca_file}: {e}") from None

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_identity(path) for path in (self._config.cert_file, self._config.key_file))


def client_context(ca_file: str) -> ssl.SSLContext:
    """Return what connections to other servers are made with: their certificates are checked, names included.

    ca_file: empty for the authorities that the system trusts. Raises ConfigError.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as e:
        raise ConfigError(f"[backend_http] cannot load ca_file {ca_file}: {e}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
