# SPDX-License-Identifier: Apache-2.0
"""TLS contexts: the server's, which is renewed while transfers run, and those for connections to other servers."""

import logging
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any

from ..config.services import TlsSection
from ..errors import ConfigError
from .tls_socket import TlsContext

log = logging.getLogger(__name__)

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ServerTls:
    """The context of new connections. Raises ConfigError if the files cannot be loaded.

    A renewed certificate gets a new context, and established connections keep theirs. OpenSSL does not allow changes to
    a context that another thread uses, as the threads of handshakes do.
    """

    def __init__(self, config: TlsSection) -> None:
        self._config = config
        self._seen = self._stamp()
        self._refused = False
        self.context = _make(config)

    def why_not(self) -> str:
        """Return why the certificate in use is not that of the files, or not valid, or "" if all is well."""
        if self.context.expires <= time.time():
            return "expired"
        return "it cannot be loaded again, the old one stays in use" if self._refused else ""

    def renew(self) -> None:
        """Load certificate and key again. If that fails, keep the old context, and log the reason."""
        self._seen = self._stamp()
        try:
            self.context = _make(self._config)
        except ConfigError as e:
            self._refused = True
            log.error("cannot renew the certificate, the old one stays in use: %s", e)
        else:
            self._refused = False
            log.info("certificate renewed from %s", self._config.cert_file)

    def renew_if_changed(self) -> None:
        """Call renew() if inode, mtime or size of a file have changed since the last load."""
        if self._stamp() != self._seen:
            self.renew()

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_identity(path) for path in (self._config.cert_file, self._config.key_file))


def client_context(ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return a context for connections to other servers, which verifies their certificates and host names.

    `ca_file` has the trusted CA certificates; the default is those of the system. `cert_file` and `key_file` are the
    client certificate, if any. TLS 1.2 is the minimum. Raises ConfigError.
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


def client_tls(ca_file: str, cert_file: str = "", key_file: str = "") -> TlsContext:
    """Return the context of client_context() for TLS by C. Raises ConfigError."""
    rules = client_context(ca_file, cert_file, key_file)
    try:
        return TlsContext(rules, cert_file=cert_file, key_file=key_file or cert_file, ca_file=ca_file)
    except OSError as e:
        raise ConfigError(f"cannot load {cert_file or ca_file}: {e}") from None


def _make(config: TlsSection) -> TlsContext:
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.minimum_version = ssl.TLSVersion.TLSv1_2
    rules.set_ciphers(":".join(each["name"] for each in rules.get_ciphers() if _is_strong(each)))
    rules.verify_mode = _CLIENT_AUTH[config.client_auth]
    # No client needs renegotiation, and it costs the server more than the client.
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


def _is_strong(cipher: Mapping[str, Any]) -> bool:
    """Return whether the server offers a cipher suite, if the policy of the host allows it.

    Suites of TLS 1.2 in CBC mode have had attacks on their padding (Lucky 13). With a suite without ephemeral keys,
    whoever steals the server's key later can read recorded traffic (RFC 9325 4.1, 4.2).
    """
    return bool(cipher["aead"]) and cipher["kea"] in ("kx-ecdhe", "kx-dhe", "kx-any")


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
