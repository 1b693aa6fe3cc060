# SPDX-License-Identifier: Apache-2.0
"""The unix socket of a server: it is used after it has proven to be the server's, and sees no ticket before."""

import contextlib
import dataclasses
import logging
import secrets
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import Settings, Temporary, info, upload
from imageio_daemon.client.server import local_socket
from imageio_daemon.client.server.local_socket import MAX_ANSWER, LocalSocket
from imageio_daemon.client.server.session import ClientSession
from imageio_daemon.net.unix_places import place_of
from tests.client.networks import missing
from tests.client.relays import Namespace, Relay, listening
from tests.examples.programs import answer
from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.images import Image, MiB, pattern

REASON = missing()
namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))

QUESTION, ANSWER = "12" * 16, "ab" * 32


@pytest.fixture
def name() -> str:
    """An abstract name that nobody else has, with its NUL."""
    return f"\0imageio-test-{secrets.token_hex(8)}"


@contextlib.contextmanager
def served(address: str, *pieces: bytes) -> Iterator[LocalSocket]:
    """A socket that answers each client with pieces, and what a server tells of it."""
    with listening(address) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.recv(4096)
                        for piece in pieces:
                            client.sendall(piece)
                        client.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield LocalSocket(address, place_of(address), QUESTION, ANSWER)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def prove(local: LocalSocket) -> None:
    with local.connect(1.0) as sock:
        local.prove(sock)


def proof(text: str = ANSWER) -> bytes:
    return answer("200 OK", {"answer": text}, "Server: x")


# Which socket is believed


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_socket_that_gives_the_answer_is_the_server_s(tmp_path: Path, name: str, kind: str) -> None:
    address = name if kind == "abstract" else str(tmp_path / "socket")
    with served(address, proof()[:20], proof()[20:]) as local:
        prove(local)


def test_path_that_is_longer_than_addresses_can_be_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / ("x" * 100)
    directory.mkdir()
    monkeypatch.chdir(directory)
    with served("socket", proof()) as local:
        prove(dataclasses.replace(local, address=str(directory / "socket")))


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_nobody_connects_to_an_address_that_leads_elsewhere(tmp_path: Path, name: str, kind: str) -> None:
    address = name if kind == "abstract" else str(tmp_path / "socket")
    with served(address, proof()) as local, pytest.raises(OSError, match="leads to another place here"):
        dataclasses.replace(local, place="00" * 32).connect(1.0)


def test_file_that_was_replaced_is_another_place(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with served(str(path), proof()) as local:
        path.rename(tmp_path / "old")
        with served(str(path), proof()), pytest.raises(OSError, match="leads to another place here"):
            local.connect(1.0)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_socket_that_nobody_listens_on_is_told(tmp_path: Path, name: str, kind: str) -> None:
    address = name if kind == "abstract" else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(address)
        local = LocalSocket(address, place_of(address), QUESTION, ANSWER)
        with pytest.raises(ConnectionRefusedError):
            local.connect(1.0)


def test_path_that_is_not_here_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalSocket(str(tmp_path / "none"), "00", QUESTION, ANSWER).connect(1.0)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([proof("ab" * 31 + "ac")], "does not prove to be the server's: another program may have its name"),
        ([answer("200 OK", {"answer": 1})], "does not prove"),
        ([answer("200 OK", {})], "does not prove"),
        ([answer("200 OK", [])], "does not prove"),
        ([answer("200 OK", {"answer": "\udcff"})], "does not prove"),
        ([answer("404 Not Found", "No such resource\n")], "does not answer as the server's local service"),
        ([b"SSH-2.0-x\r\n"], "does not answer as"),
        ([proof()[:-1]], "does not answer as|timed out"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"[" * MAX_ANSWER], "does not answer as"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_ANSWER], "does not answer as"),
        ([proof() + b"HTTP/1.1 200 OK\r\n"], "does not answer as|timed out"),
    ],
)
def test_socket_that_gives_no_such_answer_is_not_believed(
    name: str, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], text: str
) -> None:
    monkeypatch.setattr(local_socket, "PROOF_TIMEOUT", 0.2)
    with served(name, *pieces) as local, pytest.raises(OSError, match=text):
        prove(local)


def test_answer_that_comes_byte_by_byte_has_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_socket, "PROOF_TIMEOUT", 0.2)
    local = LocalSocket(name, place_of(name), QUESTION, ANSWER)
    with listening(name) as listener, local.connect(1.0) as sock:
        peer, _ = listener.accept()
        ended = threading.Event()

        def trickle() -> None:
            peer.sendall(b"HTTP/1.1 200 OK\r\n")
            with contextlib.suppress(OSError):
                while not ended.wait(0.01):
                    peer.sendall(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        with peer, pytest.raises(TimeoutError):
            local.prove(sock)
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    "told",
    [
        None,
        "proof",
        {},
        {"place": "ab", "question": "ab"},
        {"place": "ab", "question": "ab", "answer": 1},
        {"place": "ab", "question": "a\r\nb", "answer": "ab"},
        {"place": "ab", "question": "a" * 129, "answer": "ab"},
        {"place": "ab", "question": "", "answer": "ab"},
    ],
    ids=str,
)
def test_server_that_tells_no_proof_has_no_local_socket(told: Any) -> None:
    assert LocalSocket.told("/socket", told) is None


@pytest.mark.parametrize("address", ["", "\0", "/a\0b", "\0a\0", "/\ud800"], ids=ascii)
def test_address_without_a_name_is_none(address: str) -> None:
    assert LocalSocket.told(address, {"place": "ab", "question": "ab", "answer": "ab"}) is None


# A daemon


@pytest.mark.parametrize("address", [None, "@imageio-test-local", ""], ids=["path", "abstract", "random"])
def test_daemon_on_this_host_is_reached_by_its_socket(
    make_daemon: MakeDaemon, tmp_path: Path, address: str | None
) -> None:
    daemon = make_daemon(local={} if address is None else {"socket": address})
    image = tmp_path / "image"
    image.write_bytes(pattern(MiB))
    url = daemon.url(daemon.add_ticket(image, MiB))
    assert info(url, settings=Settings(cafile=str(daemon.cafile))).local


def test_socket_that_is_not_believed_is_told_to_who_debugs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, daemon: Daemon, image: Image
) -> None:
    monkeypatch.setattr(local_socket, "place_of", lambda _: "00" * 32)
    with caplog.at_level(logging.DEBUG, "imageio_daemon.client"):
        assert not info(daemon.url(image.ticket), settings=Settings(cafile=str(daemon.cafile), retry_for=0)).local
    (told,) = [record for record in caplog.records if "is not used" in record.getMessage()]
    assert told.levelno == logging.DEBUG
    assert "its address leads to another place here than on the server" in told.getMessage()


def test_name_that_another_program_has_after_the_daemon_sees_no_ticket(
    make_daemon: MakeDaemon, tmp_path: Path, name: str
) -> None:
    """A connection is made long after OPTIONS, and the daemon is gone."""
    daemon = make_daemon(local={"socket": f"@{name[1:]}"})
    image = tmp_path / "image"
    image.write_bytes(bytes(MiB))
    ticket = daemon.add_ticket(image, MiB)
    settings = Settings(cafile=str(daemon.cafile), retry_for=0)
    with ClientSession(daemon.url(ticket), settings) as session:
        session.open()
        assert session.is_local
        later = session.connect()
        daemon.kill()
        ours, theirs = socket.socketpair()
        with theirs, Relay(listening(name), lambda: ours) as stranger:
            with pytest.raises(Temporary, match=r"does not answer as|does not prove|timed out"):
                later.size()
            assert stranger.count == 1
    assert stranger.captured.startswith(b"GET /local/")
    assert ticket.encode() not in stranger.captured


# Relays


@pytest.fixture
def there(certificates: Certificates, name: str) -> Iterator[tuple[Namespace, Daemon]]:
    """A daemon in another network namespace, as in a container, with an abstract name."""
    with (
        Namespace() as namespace,
        Daemon(certificates, {"local": {"socket": f"@{name[1:]}"}}, wrapper=namespace.inside) as daemon,
    ):
        yield namespace, daemon


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.raw"
    path.write_bytes(pattern(4 * MiB))
    return path


def sent_by_relay(namespace: Namespace, daemon: Daemon, source: Path, stranger: Relay) -> None:
    """Upload through a relay on this host, while a stranger has the name, who must see nothing of it."""
    target = source.with_name("target.raw")
    target.touch()
    ticket = daemon.add_ticket(target, 4 * MiB)
    published = listening(("127.0.0.1", 0))
    port = published.getsockname()[1]
    settings = Settings(cafile=str(daemon.cafile), retry_for=0)
    with stranger, Relay(published, lambda: namespace.connect(socket.AF_INET, ("127.0.0.1", daemon.port))):
        done = upload(source, f"https://localhost:{port}/images/{ticket}", settings=settings, state=False)
    assert not done.local
    assert target.read_bytes() == source.read_bytes()
    assert ticket.encode() not in stranger.captured
    assert b"/images/" not in stranger.captured


@namespaces
def test_name_that_leads_elsewhere_behind_a_relay_is_not_even_connected_to(
    there: tuple[Namespace, Daemon], name: str, source: Path
) -> None:
    """The stranger passes all on to the real socket, as one could who has programs in both namespaces."""
    namespace, daemon = there
    stranger = Relay(listening(name), lambda: namespace.connect(socket.AF_UNIX, name))
    sent_by_relay(namespace, daemon, source, stranger)
    assert stranger.count == 0


@namespaces
def test_path_that_leads_to_another_file_here_is_not_even_connected_to(
    certificates: Certificates, source: Path
) -> None:
    """The daemon has a file system of its own there, as in a container, and the real socket is reached elsewhere."""
    with tempfile.TemporaryDirectory(prefix="imageio-") as directory, Namespace() as namespace:
        path = f"{directory}/local"
        mounted = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', directory)
        with Daemon(certificates, {"local": {"socket": path}}, wrapper=(*namespace.inside, *mounted)) as daemon:
            real = f"/proc/{daemon.pid}/root{path}"
            stranger = Relay(listening(path), lambda: namespace.connect(socket.AF_UNIX, real))
            sent_by_relay(namespace, daemon, source, stranger)
    assert stranger.count == 0


@namespaces
def test_stranger_who_passes_the_question_on_by_tls_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch, there: tuple[Namespace, Daemon], name: str, source: Path
) -> None:
    """The place seems to be the same, as on hosts of which one is a copy of the other while it runs."""
    namespace, daemon = there
    there_too = [place_of(f"/run/netns/{namespace.inside[-1]}")]
    monkeypatch.setattr(local_socket, "place_of", lambda _: there_too[0])
    context = ssl.create_default_context(cafile=str(daemon.cafile))

    def by_tls() -> socket.socket:
        plain = namespace.connect(socket.AF_INET, ("127.0.0.1", daemon.port))
        return context.wrap_socket(plain, server_hostname="localhost")

    stranger = Relay(listening(name), by_tls)
    sent_by_relay(namespace, daemon, source, stranger)
    assert stranger.count == 1
    assert stranger.captured.startswith(b"GET /local/")
