# SPDX-License-Identifier: Apache-2.0
"""TLS: versions, certificates of both sides, and a certificate that changes while transfers run."""

import signal
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError, connect_tls, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually
from tests.support.tlsflood import FloodingClient, flooding

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


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


def one_cipher(certificates: Certificates, name: str) -> ssl.SSLContext:
    """Return rules of a client that has this suite of TLS 1.2 and no other."""
    version = ssl.TLSVersion.TLSv1_2
    context = context_for(certificates, minimum_version=version, maximum_version=version)
    context.set_ciphers(f"{name}:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("name", ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"])
def test_strong_suites_of_tls_1_2_are_spoken(daemon: Daemon, name: str) -> None:
    assert ask(daemon, one_cipher(daemon.certificates, name)) == 200


@pytest.mark.parametrize("name", ["ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA"])
def test_suites_in_cbc_mode_are_refused(daemon: Daemon, name: str) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(daemon, one_cipher(daemon.certificates, name))


@pytest.mark.parametrize("name", ["AES128-GCM-SHA256", "AES256-SHA256"])
def test_suites_without_an_ephemeral_key_are_refused(make_daemon: MakeDaemon, tmp_path: Path, name: str) -> None:
    certificates = Certificates.make(tmp_path, trustme.KeyType.RSA)
    daemon = make_daemon(tls={"cert_file": certificates.certfile, "key_file": certificates.keyfile})
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(daemon, one_cipher(certificates, name))
    assert ask(daemon, one_cipher(certificates, "ECDHE-RSA-AES128-GCM-SHA256")) == 200


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


# Records that bring no data


@pytest.fixture
def quiet(make_daemon: MakeDaemon) -> Daemon:
    """A daemon that hands connections over to C: it does not while requests are logged."""
    return make_daemon(log={"level": "info"})


@pytest.fixture(params=VERSIONS, ids=str)
def flood(quiet: Daemon, request: pytest.FixtureRequest) -> Iterator[FloodingClient]:
    client = FloodingClient.connect(("127.0.0.1", quiet.port), request.param)
    yield client
    client.close()


def seconds_of_control(daemon: Daemon, requests: int) -> list[float]:
    """Return how long requests of the control service took, the longest last."""
    taken = []
    for _ in range(requests):
        started = time.monotonic()
        assert daemon.control("GET", "/tickets/").status == 200
        taken.append(time.monotonic() - started)
    return sorted(taken)


@pytest.mark.alone
def test_control_service_answers_while_sixteen_connections_flood(quiet: Daemon) -> None:
    with flooding(quiet.port, 16):
        taken = seconds_of_control(quiet, 300)
    assert taken[-4] < 0.1, "the 99th percentile"
    assert quiet.control("GET", "/tickets/").status == 200


def test_peer_that_floods_before_its_request_is_cut(flood: FloodingClient) -> None:
    flood.send_all(flood.idle_records(200))
    assert flood.is_cut()


def test_peer_that_floods_in_its_head_is_cut(flood: FloodingClient) -> None:
    flood.send_all(flood.data_record(b"GET /info/ HTTP/1.1\r\nHost:") + flood.idle_records(200))
    assert flood.is_cut()


def hand_over(quiet: Daemon, image: Image, client: FloodingClient) -> None:
    """Send plain requests on a connection until C serves it."""
    for number in range(3):
        content_range = {"Content-Range": f"bytes {number * 512}-{number * 512 + 511}/*"}
        client.send_all(client.data_record(encode_request("PUT", image.url, content_range, bytes(512))))
        eventually(lambda: bool(quiet.status(image.ticket)["transferred"]), "a request is answered")


def test_peer_that_floods_a_lane_is_cut(quiet: Daemon, flood: FloodingClient, tmp_path: Path) -> None:
    image = make_image(quiet, tmp_path)(ops=["write"])
    hand_over(quiet, image, flood)
    eventually(lambda: quiet.status(image.ticket)["transferred"] == 3 * 512, "all requests are answered")
    flood.send_all(flood.idle_records(200))
    assert flood.is_cut()
    eventually(lambda: quiet.status(image.ticket)["connections"] == 0, "the connection is gone")


def test_peer_that_floods_in_a_body_that_c_receives_is_cut(
    quiet: Daemon, flood: FloodingClient, tmp_path: Path
) -> None:
    image = make_image(quiet, tmp_path)(ops=["write"], size=2 * MiB)
    hand_over(quiet, image, flood)
    head = encode_request("PUT", image.url, {"Content-Length": str(MiB)}, b"")
    flood.send_all(flood.data_record(head + bytes(1000)) + flood.idle_records(200))
    assert flood.is_cut()
    eventually(lambda: quiet.status(image.ticket)["connections"] == 0, "the connection is gone")
