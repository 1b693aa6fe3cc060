# SPDX-License-Identifier: Apache-2.0
"""TLS of ours: contexts and connections."""

import socket
import ssl

from imageio_daemon.client.securesocket import SecureSocket
from imageio_daemon.tlssocket import TlsContext

from .daemon import Certificates
from .polling import SOON


def server_context(certificates: Certificates, rules: ssl.SSLContext | None = None) -> TlsContext:
    """Return a server's context, by other rules than the usual ones."""
    rules = rules or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return TlsContext(rules, cert_file=str(certificates.certfile), key_file=str(certificates.keyfile))


def secured(sock: socket.socket, context: TlsContext, host: str | None = None) -> SecureSocket:
    """Return TLS upon a socket, to be used as one that waits."""
    sock.settimeout(SOON)
    return SecureSocket(sock, context, host)
