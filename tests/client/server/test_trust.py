# SPDX-License-Identifier: Apache-2.0
"""Which servers the client believes: by authorities, and by pins of their keys."""

import base64
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon.client import Settings, info
from imageio_daemon.client.errors import ServerFailed, Stopped, Usage
from imageio_daemon.client.server.session import securing
from imageio_daemon.client.stopping import Stop
from tests.client.programs import run
from tests.support.daemon import Certificates, Daemon
from tests.support.images import Image, MakeImage
from tests.support.tls import pin_of

#: The pin of no key.
OTHER = f"sha256//{base64.b64encode(bytes(32)).decode()}"


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    return new_image(size=4096)


@pytest.fixture
def pin(certificates: Certificates) -> str:
    return pin_of(certificates.certfile)


def test_pin_alone_needs_no_authority(daemon: Daemon, image: Image, pin: str) -> None:
    assert info(daemon.url(image.ticket), settings=Settings(pins=[pin], local=False)).size == 4096


def test_pin_alone_asks_for_no_name(daemon: Daemon, image: Image, pin: str) -> None:
    url = daemon.url(image.ticket, host="127.0.0.2")  # which is not in the certificate
    assert info(url, settings=Settings(pins=[pin], local=False)).size == 4096


def test_pin_and_authority_must_both_be_right(daemon: Daemon, image: Image, pin: str) -> None:
    both = Settings(cafile=str(daemon.cafile), pins=[pin], local=False)
    assert info(daemon.url(image.ticket), settings=both).size == 4096
    with pytest.raises(ServerFailed, match="can't be verified: "):
        info(daemon.url(image.ticket, host="127.0.0.2"), settings=both)


def test_certificate_for_another_name_is_told(daemon: Daemon, image: Image) -> None:
    url = daemon.url(image.ticket, host="127.0.0.2")  # which is not in the certificate
    with pytest.raises(ServerFailed, match=r"IP address mismatch\. It is for another name: .*; or, .* --pin sha256"):
        info(url, settings=Settings(cafile=str(daemon.cafile), local=False))


@pytest.mark.parametrize("more", [{}, {"insecure": True}, {"cafile": ""}])
def test_server_with_another_key_is_never_believed(
    daemon: Daemon, image: Image, pin: str, more: dict[str, object]
) -> None:
    if "cafile" in more:
        more = {"cafile": str(daemon.cafile)}
    settings = Settings(pins=[OTHER], local=False, **more)  # type: ignore[arg-type]
    with pytest.raises(ServerFailed, match=f"has the pin {pin}, which is none of those given".replace("+", r"\+")):
        info(daemon.url(image.ticket), settings=settings)


def test_ticket_is_not_sent_to_a_server_with_another_key(daemon: Daemon, image: Image) -> None:
    before = daemon.status(image.ticket)
    with pytest.raises(ServerFailed):
        info(daemon.url(image.ticket), settings=Settings(pins=[OTHER], local=False))
    assert daemon.status(image.ticket)["connections"] == before["connections"]


@pytest.mark.parametrize("joined", [True, False])
def test_one_of_several_pins_is_enough(daemon: Daemon, image: Image, pin: str, *, joined: bool) -> None:
    pins = [f"{OTHER};{pin}"] if joined else [OTHER, pin]
    assert info(daemon.url(image.ticket), settings=Settings(pins=pins, local=False)).size == 4096


def test_message_about_an_unknown_authority_says_what_to_do(daemon: Daemon, image: Image, pin: str) -> None:
    told = run("info", "--no-local", daemon.url(image.ticket))
    assert told.status == 4
    assert "can't be verified: unable to get local issuer certificate. --cafile FILE trusts the authority" in told.err
    assert f"--pin {pin} trusts its key" in told.err
    assert run("info", "--no-local", "--pin", pin, daemon.url(image.ticket)).status == 0


def test_curl_takes_the_same_pin(daemon: Daemon, image: Image, pin: str) -> None:
    url = daemon.url(image.ticket)
    curl = ["curl", "-sS", "--insecure", "-X", "OPTIONS", url, "--pinnedpubkey"]
    assert subprocess.run([*curl, pin], check=False, capture_output=True, timeout=60).returncode == 0
    refused = subprocess.run([*curl, OTHER], check=False, capture_output=True, timeout=60)
    assert refused.returncode == 90  # CURLE_SSL_PINNEDPUBKEYNOTMATCH


@pytest.mark.parametrize("pin", ["", "x", "sha256//", "sha1//" + "A" * 43 + "=", OTHER + ";", OTHER + "\n", OTHER[:-1]])
def test_text_that_is_no_pin_is_refused(pin: str) -> None:
    with pytest.raises(Usage, match=r"must look like sha256//BASE64"):
        info("https://localhost:1/images/x", settings=Settings(pins=[pin]))


def test_pin_without_tls_is_refused() -> None:
    with pytest.raises(Usage, match="needs a URL with https"):
        info("http://localhost:1/images/x", settings=Settings(pins=[OTHER]))


def test_missing_authorities_are_told(tmp_path: Path) -> None:
    told = run("info", "--cafile", tmp_path / "none", "https://localhost:1/images/x")
    assert told.status == 5
    assert "can't load the certificates in" in told.err


def test_stop_ends_a_handshake() -> None:
    stop, secured = Stop(), securing(Settings(insecure=True))
    ours, theirs = socket.socketpair()
    stop.add(ours)
    with theirs, ThreadPoolExecutor(1) as pool:
        shaking = pool.submit(secured, ours, "localhost", stop)
        assert theirs.recv(1)
        stop.stop()
        with pytest.raises(ConnectionResetError):
            shaking.result()


def test_no_handshake_begins_after_stop() -> None:
    stop, secured = Stop(), securing(Settings(insecure=True))
    stop.stop()
    ours, theirs = socket.socketpair()
    with theirs:
        with pytest.raises(Stopped):
            secured(ours, "localhost", stop)
        assert not theirs.recv(1)
