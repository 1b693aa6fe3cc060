# SPDX-License-Identifier: Apache-2.0
"""Contexts and connections of TLS for tests."""

import base64
import datetime
import hashlib
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imageio_daemon.client.server.secure_socket import SecureSocket
from imageio_daemon.net.tls_socket import TlsContext

from .daemon import Certificates
from .polling import SOON


def server_context(certificates: Certificates, rules: ssl.SSLContext | None = None) -> TlsContext:
    """Return a server's context with other rules than the usual ones."""
    rules = rules or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return TlsContext(rules, cert_file=str(certificates.certfile), key_file=str(certificates.keyfile))


def secured(sock: socket.socket, context: TlsContext, host: str | None = None) -> SecureSocket:
    """Return a blocking socket with TLS on a socket."""
    sock.settimeout(SOON)
    return SecureSocket(sock, context, host)


def issue_to_itself(directory: Path, name: str) -> tuple[Path, Path]:
    """Write a self-signed certificate for any name, and its key. Return their files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


def pin_of(certificate: Path) -> str:
    """Return the pin of a certificate: SHA-256 of its SubjectPublicKeyInfo (RFC 7469 2.4)."""
    public = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    key = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"sha256//{base64.b64encode(hashlib.sha256(key).digest()).decode()}"
