# SPDX-License-Identifier: Apache-2.0
"""TLS: the server's context, renewed while transfers run, and that of connections to other servers."""

import logging
import os
import ssl

from .errors import ConfigError
from .sections import Tls
from .tlssocket import TlsContext

log = logging.getLogger(__name__)

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ServerTls:
    """Hold the context for new connections.

    Renewal puts another one into its place: running connections keep theirs, and no thread ever shakes hands with a
    context that changes, which OpenSSL does not allow. Thread-safe.
    """

    def __init__(self, config: Tls) -> None:
        self._config = config
        self._seen = self._stamp()
        self.context = _make(config)

    def renew(self) -> None:
        """Load certificate and key again; when that fails the old ones stay and the log says why."""
        self._seen = self._stamp()
        try:
            self.context = _make(self._config)
        except ConfigError as e:
            log.error("cannot renew the certificate, the old one stays in use: %s", e)
        else:
            log.info("certificate renewed from %s", self._config.cert_file)

    def renew_if_changed(self) -> None:
        """Renew when a file is another one than last time."""
        if self._stamp() != self._seen:
            self.renew()

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_identity(path) for path in (self._config.cert_file, self._config.key_file))


def client_context(ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return what connections to other servers are made with: their certificates are checked, names included.

    ca_file: empty for the authorities that the system trusts. cert_file: what we show of ourselves, if anything.
    Raises ConfigError.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            context.load_cert_chain(cert_file, key_file or None)
    except OSError as e:
        files = " or ".join(file for file in (ca_file, cert_file, key_file) if file)
        raise ConfigError(f"cannot load {files or 'the CA certificates of the system'}: {e}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _make(config: Tls) -> TlsContext:
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.minimum_version = ssl.TLSVersion.TLSv1_2
    rules.verify_mode = _CLIENT_AUTH[config.client_auth]
    # Transfers are long and keep their connections: renegotiation is only an attack.
    rules.options |= ssl.OP_NO_RENEGOTIATION
    ca_file = ""
    if rules.verify_mode is not ssl.CERT_NONE:
        ca_file = config.ca_file
        _load_ca(rules, ca_file)
    try:
        return TlsContext(rules, cert_file=config.cert_file, key_file=config.key_file, ca_file=ca_file)
    except OSError as e:
        raise ConfigError(
            f"[tls] cannot load cert_file {config.cert_file} with key_file {config.key_file}: {e}"
        ) from None


def _load_ca(rules: ssl.SSLContext, ca_file: str) -> None:
    try:
        rules.load_verify_locations(ca_file)
    except OSError as e:
        raise ConfigError(f"[tls] cannot load ca_file {ca_file}: {e}") from None


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
