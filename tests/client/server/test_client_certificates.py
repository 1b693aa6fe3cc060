# SPDX-License-Identifier: Apache-2.0
"""Servers that want a certificate of the client."""

import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, ServerFailed, Settings, Usage, download, info
from imageio_daemon.client.server.failures import client_refused
from tests.client.programs import run
from tests.support.daemon import Certificates, Daemon
from tests.support.images import pattern


@pytest.fixture
def strict(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon whose clients need a certificate."""
    with Daemon(certificates, {"tls": {"ca_file": certificates.cafile, "client_auth": "required"}}) as daemon:
        yield daemon


@pytest.fixture
def url(strict: Daemon, tmp_path: Path) -> str:
    (tmp_path / "image").write_bytes(pattern(4096))
    return strict.url(strict.add_ticket(tmp_path / "image", 4096))


def settings(daemon: Daemon, **more: str) -> Settings:
    return Settings(cafile=str(daemon.cafile), local=False, **more)  # type: ignore[arg-type]


def test_certificate_with_its_key_in_one_file(strict: Daemon, url: str, certificates: Certificates) -> None:
    assert info(url, settings=settings(strict, cert=str(certificates.client_certfile))).size == 4096


def test_key_may_be_in_a_file_of_its_own(strict: Daemon, url: str, certificates: Certificates, tmp_path: Path) -> None:
    key, _, cert = certificates.client_certfile.read_text().partition("-----BEGIN CERTIFICATE")
    (tmp_path / "key").write_text(key)
    (tmp_path / "cert").write_text(f"-----BEGIN CERTIFICATE{cert}")
    options: list[str | Path] = [
        "download",
        "--no-local",
        "--quiet",
        "--cafile",
        strict.cafile,
        "--cert",
        tmp_path / "cert",
    ]
    assert run(*options, "--key", tmp_path / "key", url, tmp_path / "copy").status == 0
    assert (tmp_path / "copy").read_bytes() == pattern(4096)


def test_server_that_wants_one_is_told_at_once(strict: Daemon, url: str, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="wants a certificate of its clients: --cert FILE"):
        download(url, tmp_path / "copy", settings=settings(strict))


def test_older_tls_ends_in_the_handshake(daemon: Daemon, certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    context.load_verify_locations(certificates.cafile)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_2

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(ssl.SSLError):
            context.wrap_socket(peer, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        served = pool.submit(serve)
        with pytest.raises(ServerFailed, match=r"may want a certificate of its clients \(--cert FILE\)"):
            info(f"https://localhost:{listener.getsockname()[1]}/images/x", settings=settings(daemon))
        served.result()


def test_certificate_of_another_authority_is_told(strict: Daemon, url: str, tmp_path: Path) -> None:
    other = Certificates.make(tmp_path).client_certfile
    with pytest.raises(ServerFailed, match="does not take the certificate of --cert"):
        info(url, settings=settings(strict, cert=str(other)))


def test_files_that_cant_be_used_are_told(daemon: Daemon, certificates: Certificates, tmp_path: Path) -> None:
    for name in (tmp_path / "missing", certificates.certfile):
        with pytest.raises(LocalError, match=f"can't load the client's .* and its key, .* from {name}: .*--key FILE"):
            info(daemon.url("x"), settings=settings(daemon, cert=str(name)))
    with pytest.raises(LocalError, match=f"from {certificates.certfile} and {tmp_path}/key: "):
        info(daemon.url("x"), settings=settings(daemon, cert=str(certificates.certfile), key=f"{tmp_path}/key"))


def test_key_needs_its_certificate(daemon: Daemon) -> None:
    with pytest.raises(Usage, match="a key needs its certificate: --cert FILE"):
        info(daemon.url("x"), settings=settings(daemon, key="key"))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EPROTO, "sslv3 alert handshake failure"), "it may want a certificate"),
        (OSError(errno.EPROTO, "ssl/tls alert certificate expired"), r"\(certificate expired\)"),
        (OSError(errno.EPROTO, "wrong version number"), None),
        (OSError(errno.ECONNRESET, "alert certificate required"), None),
        (ValueError("alert certificate required"), None),
    ],
)
def test_alerts_of_tls_are_told(error: Exception, told: str | None) -> None:
    found = client_refused("host:1", error)
    assert (found is None) == (told is None)
    if told is not None and found is not None:
        with pytest.raises(ServerFailed, match=told):
            raise found
