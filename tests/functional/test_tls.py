# SPDX-License-Identifier: Apache-2.0
"""TLS: versions, certificates of both sides, and a certificate that changes while transfers run."""

import signal
import socket
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError, connect_tls, encode_request
from tests.support.images import MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually


def context_for(certificates: Certificates, **limits: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.cafile))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of old versions, which must be refused
        for name, version in limits.items():
            setattr(context, name, version)
    return context


def ask(daemon: Daemon, context: ssl.SSLContext) -> int:
    with Connection(connect_tls("localhost", daemon.port, context)) as connection:
        return connection.get("/info/").status


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
def test_current_versions_are_spoken(daemon: Daemon, version: ssl.TLSVersion) -> None:
    context = context_for(daemon.certificates, minimum_version=version, maximum_version=version)
    assert ask(daemon, context) == 200


def test_old_versions_are_refused(daemon: Daemon) -> None:
    context = context_for(
        daemon.certificates, minimum_version=ssl.TLSVersion.MINIMUM_SUPPORTED, maximum_version=ssl.TLSVersion.TLSv1_1
    )
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(daemon, context)


def test_http_on_the_tls_port_is_refused(daemon: Daemon) -> None:
    with Connection(socket.create_connection(("localhost", daemon.port), timeout=20)) as connection:
        connection.send(encode_request("GET", "/info/"))
        with pytest.raises(DisconnectedError):
            connection.receive()


def test_it_can_be_switched_off(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(tls={"enable": False})
    with Connection(socket.create_connection(("localhost", daemon.port), timeout=20)) as connection:
        assert connection.get("/info/").status == 200


# Certificates of clients


@pytest.fixture
def strangers_certificate(tmp_path: Path) -> Path:
    """Return a certificate of a client that nobody knows."""
    return Certificates.make(tmp_path).client_certfile


def test_a_client_needs_no_certificate_even_with_a_ca_file(make_daemon: MakeDaemon, certificates: Certificates) -> None:
    daemon = make_daemon(tls={"ca_file": certificates.cafile})
    assert ask(daemon, context_for(certificates)) == 200


def test_a_certificate_may_be_required(
    make_daemon: MakeDaemon, certificates: Certificates, strangers_certificate: Path
) -> None:
    daemon = make_daemon(tls={"ca_file": certificates.cafile, "client_auth": "required"})
    known = context_for(certificates)
    known.load_cert_chain(certificates.client_certfile)
    assert ask(daemon, known) == 200
    stranger = context_for(certificates)
    stranger.load_cert_chain(strangers_certificate)
    for refused in (context_for(certificates), stranger):
        # In TLS 1.3 the client learns it with the first read.
        with pytest.raises((ssl.SSLError, ConnectionError, DisconnectedError)):
            ask(daemon, refused)


def test_a_certificate_may_be_optional(
    make_daemon: MakeDaemon, certificates: Certificates, strangers_certificate: Path
) -> None:
    daemon = make_daemon(tls={"ca_file": certificates.cafile, "client_auth": "optional"})
    known = context_for(certificates)
    known.load_cert_chain(certificates.client_certfile)
    assert ask(daemon, known) == 200
    assert ask(daemon, context_for(certificates)) == 200
    stranger = context_for(certificates)
    stranger.load_cert_chain(strangers_certificate)
    with pytest.raises((ssl.SSLError, ConnectionError, DisconnectedError)):
        ask(daemon, stranger)


# A certificate that changes


@pytest.fixture
def own_certificates(tmp_path: Path) -> Certificates:
    directory = tmp_path / "in-use"
    directory.mkdir()
    return Certificates.make(directory)


@pytest.fixture
def replace(own_certificates: Certificates, tmp_path: Path) -> Callable[[], Certificates]:
    """Replace the files in use by those of another authority, as a renewal does; returns the new ones."""

    def do() -> Certificates:
        directory = tmp_path / "new"
        directory.mkdir()
        new = Certificates.make(directory)
        new.certfile.rename(own_certificates.certfile)
        new.keyfile.rename(own_certificates.keyfile)
        return new

    return do


def test_hangup_loads_a_new_certificate_without_cutting_a_transfer(
    own_certificates: Certificates, replace: Callable[[], Certificates], tmp_path: Path
) -> None:
    with Daemon(own_certificates) as daemon:
        image = make_image(daemon, tmp_path)()
        content = pattern(MiB, seed=5)
        with daemon.connect("tls") as connection:
            connection.send(encode_request("PUT", image.url, None, content)[:-1000])
            new = replace()
            assert ask(daemon, context_for(own_certificates)) == 200, "nothing changes before the signal"
            daemon.send_signal(signal.SIGHUP)
            eventually(lambda: speaks(daemon, new), "new connections see the new certificate")
            assert not speaks(daemon, own_certificates)
            connection.send(content[-1000:])
            assert connection.receive().status == 200
        assert image.content() == content


def test_hangup_with_a_bad_certificate_keeps_the_old_one(own_certificates: Certificates, tmp_path: Path) -> None:
    with Daemon(own_certificates) as daemon:
        own_certificates.keyfile.write_text("this is no key\n")
        start = daemon.log.end()
        daemon.send_signal(signal.SIGHUP)
        daemon.log.wait_for("certificate", start=start)
        assert speaks(daemon, own_certificates)


def speaks(daemon: Daemon, certificates: Certificates) -> bool:
    try:
        return ask(daemon, context_for(certificates)) == 200
    except ssl.SSLCertVerificationError:
        return False


def test_a_transfer_survives_a_hangup_storm(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image()
    with daemon.connect("tls") as connection:
        for number in range(20):
            daemon.send_signal(signal.SIGHUP)
            assert connection.put(image.url, pattern(MiB, seed=number)).status == 200
    assert image.content() == pattern(MiB, seed=19)
