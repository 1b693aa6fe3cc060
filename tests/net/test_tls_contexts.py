# SPDX-License-Identifier: Apache-2.0
import contextlib
import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from imageio_daemon.client.server.secure_socket import SecureSocket
from imageio_daemon.config.services import TlsSection
from imageio_daemon.errors import ConfigError
from imageio_daemon.net.tls_contexts import ServerTls, client_context
from tests.support.tls import issue_to_itself


class Certificates:
    """A certificate authority and what it issued, in files."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self.cert_file = directory / "cert.pem"
        self.key_file = directory / "key.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.issue("localhost")

    def issue(self, name: str) -> None:
        """Replace certificate and key."""
        made = self.ca.issue_cert(name)
        made.cert_chain_pems[0].write_to_path(self.cert_file)
        made.private_key_pem.write_to_path(self.key_file)

    def config(self, client_auth: str = "none") -> TlsSection:
        return TlsSection(
            enable=True,
            key_file=str(self.key_file),
            cert_file=str(self.cert_file),
            ca_file=str(self.ca_file),
            client_auth=client_auth,
        )

    def client(self, *, own: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if own:
            self.ca.issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


Handshake = Callable[..., str | None]


@pytest.fixture
def handshake() -> Handshake:
    """Shake hands over a socket pair and exchange a byte; return the protocol version."""

    def shake(server: ServerTls, client: ssl.SSLContext, name: str = "localhost") -> str | None:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=_serve, args=(server, ours))
        thread.start()
        try:
            with client.wrap_socket(theirs, server_hostname=name) as tls:
                tls.sendall(b"x")
                if tls.recv(1) != b"x":
                    raise ssl.SSLError("closed")
                return tls.version()
        finally:
            theirs.close()
            thread.join()

    return shake


def _serve(server: ServerTls, sock: socket.socket) -> None:
    with SecureSocket(sock, server.context) as tls, contextlib.suppress(OSError):
        tls.shake_hands()
        tls.sendall(tls.recv(1))


def test_client_that_trusts_the_authority_connects(handshake: Handshake, certificates: Certificates) -> None:
    assert handshake(ServerTls(certificates.config()), certificates.client()) == "TLSv1.3"


def test_protocols_older_than_1_2_are_refused(certificates: Certificates) -> None:
    assert ServerTls(certificates.config()).context.rules.minimum_version is ssl.TLSVersion.TLSv1_2


def test_ca_file_alone_asks_for_no_client_certificate(handshake: Handshake, certificates: Certificates) -> None:
    handshake(ServerTls(certificates.config("none")), certificates.client())


def test_optional_client_certificate_may_be_missing(handshake: Handshake, certificates: Certificates) -> None:
    handshake(ServerTls(certificates.config("optional")), certificates.client())


def test_required_client_certificate_must_be_there(handshake: Handshake, certificates: Certificates) -> None:
    server = ServerTls(certificates.config("required"))
    with pytest.raises(OSError, match=r"."):
        handshake(server, certificates.client())


def test_required_client_certificate_is_accepted(handshake: Handshake, certificates: Certificates) -> None:
    handshake(ServerTls(certificates.config("required")), certificates.client(own=True))


@pytest.mark.parametrize("missing", ["key_file", "cert_file"])
def test_missing_file_is_an_error_of_configuration(certificates: Certificates, missing: str) -> None:
    getattr(certificates, missing).unlink()
    with pytest.raises(ConfigError, match="cannot load"):
        ServerTls(certificates.config())


def test_key_with_a_passphrase_is_an_error_of_configuration(certificates: Certificates) -> None:
    key, locked = certificates.key_file, certificates.key_file.with_name("locked.pem")
    subprocess.run(["openssl", "pkey", "-in", key, "-out", locked, "-aes256", "-passout", "pass:secret"], check=True)
    locked.replace(key)
    with pytest.raises(ConfigError, match="key_file"):
        ServerTls(certificates.config())


def test_bad_ca_file_is_an_error_of_configuration(certificates: Certificates) -> None:
    certificates.ca_file.write_text("rubbish")
    with pytest.raises(ConfigError, match="ca_file"):
        ServerTls(certificates.config("required"))


def test_renewed_certificate_is_used_for_new_connections(handshake: Handshake, certificates: Certificates) -> None:
    server = ServerTls(certificates.config())
    certificates.issue("other.example.org")
    server.renew()
    handshake(server, certificates.client(), "other.example.org")


def test_changed_files_are_noticed(handshake: Handshake, certificates: Certificates) -> None:
    server = ServerTls(certificates.config())
    certificates.issue("other.example.org")
    server.renew_if_changed()
    handshake(server, certificates.client(), "other.example.org")


def test_unchanged_files_are_left_alone(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    server = ServerTls(certificates.config())
    with caplog.at_level(logging.INFO):
        server.renew_if_changed()
    assert not caplog.records


@pytest.mark.parametrize("damage", ["missing", "mismatch"])
def test_failed_renewal_keeps_the_old_certificate(
    handshake: Handshake, certificates: Certificates, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    server = ServerTls(certificates.config())
    if damage == "missing":
        certificates.cert_file.unlink()
    else:
        certificates.ca.issue_cert("x.example.org").private_key_pem.write_to_path(certificates.key_file)
    server.renew()
    assert "cannot renew" in caplog.text
    handshake(server, certificates.client())


def test_server_whose_wildcard_stands_for_a_part_of_a_label_is_not_believed(tmp_path: Path) -> None:
    """As servers of `https:` and `nbds:` tickets are: RFC 9525, section 6.3."""
    certificate, key = issue_to_itself(tmp_path, "im*.example.com")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_shake_in_vain, args=(server, theirs))
    thread.start()
    with ours, pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        client_context(str(certificate)).wrap_socket(ours, server_hostname="images.example.com")
    thread.join()


def _shake_in_vain(server: ssl.SSLContext, sock: socket.socket) -> None:
    with sock, pytest.raises(OSError, match=r"."):
        server.wrap_socket(sock, server_side=True)
