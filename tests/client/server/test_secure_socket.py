# SPDX-License-Identifier: Apache-2.0
import base64
import contextlib
import errno
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from imageio_daemon.client.file_part import FilePart
from imageio_daemon.client.server.pace import UNLIMITED, Paced
from imageio_daemon.client.server.secure_socket import SecureSocket
from imageio_daemon.client.server.sending import Request, not_counted, send_all
from imageio_daemon.client.stopping import Stop
from imageio_daemon.net.tls_socket import TlsContext
from imageio_daemon.units import MiB
from tests.support.daemon import Certificates
from tests.support.polling import SOON
from tests.support.tls import issue_to_itself, pin_of, secured, server_context

#: Longer than no time, for a peer that does nothing.
SHORT = 0.05


class Ends:
    """Both ends of one connection."""

    def __init__(
        self, certificates: Certificates, client: TlsContext, pair: tuple[socket.socket, socket.socket] | None = None
    ) -> None:
        here, there = pair or socket.socketpair()
        self.theirs = secured(there, server_context(certificates))
        self.ours = secured(here, client, "localhost")

    def shake_hands(self) -> None:
        thread = threading.Thread(target=self.theirs.shake_hands)
        thread.start()
        try:
            self.ours.shake_hands()
        finally:
            thread.join()


@pytest.fixture
def client(certificates: Certificates) -> TlsContext:
    return TlsContext(ssl.create_default_context(), ca_file=str(certificates.cafile))


@pytest.fixture
def ends(certificates: Certificates, client: TlsContext) -> Iterator[Ends]:
    ends = Ends(certificates, client)
    ends.shake_hands()
    with ends.ours, ends.theirs:
        yield ends


def test_all_that_is_sent_arrives(ends: Ends) -> None:
    data = os.urandom(4 * MiB + 7)
    thread = threading.Thread(target=ends.ours.sendall, args=(data,))
    thread.start()
    assert ends.theirs.makefile("rb").read(len(data)) == data
    thread.join()


def test_part_of_a_file_is_encrypted(certificates: Certificates, client: TlsContext, tmp_path: Path) -> None:
    data = os.urandom(MiB)
    (tmp_path / "file").write_bytes(data)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = Ends(certificates, client, (socket.create_connection(server.getsockname()), server.accept()[0]))
    ends.shake_hands()
    with (tmp_path / "file").open("rb") as file, ends.ours, ends.theirs:
        body = FilePart(file.fileno(), 0, MiB, lambda *_: RuntimeError())
        arguments = (ends.ours, [Request(b"head", body, MiB)], not_counted, Paced(UNLIMITED, Stop()))
        thread = threading.Thread(target=send_all, args=arguments)
        thread.start()
        assert ends.theirs.makefile("rb").read(4 + MiB) == b"head" + data
        thread.join()


def test_send_tells_how_much_it_sent(ends: Ends) -> None:
    assert ends.ours.send(b"hello") == 5
    assert ends.theirs.recv(5) == b"hello"


def test_lines_are_read_as_they_come(ends: Ends) -> None:
    ends.theirs.sendall(b"one\ntwo\n")
    file = ends.ours.makefile("rb")
    assert [file.readline(), file.readline()] == [b"one\n", b"two\n"]


def test_silent_peer_is_waited_for_as_long_as_the_timeout_says(ends: Ends) -> None:
    ends.ours.settimeout(SHORT)
    with pytest.raises(TimeoutError):
        ends.ours.recv(1)


def test_peer_that_does_not_read_is_waited_for_as_long_as_the_timeout_says(ends: Ends) -> None:
    ends.ours.settimeout(SHORT)
    with pytest.raises(TimeoutError):
        ends.ours.sendall(bytes(64 * MiB))


def test_peer_that_has_ended_and_does_not_read_is_not_waited_for(ends: Ends) -> None:
    ends.theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        ends.ours.sendall(bytes(64 * MiB))


def test_shutdown_by_another_thread_ends_what_waits(ends: Ends) -> None:
    thread = threading.Thread(target=ends.ours.shutdown, args=(socket.SHUT_RDWR,))
    ends.ours.settimeout(None)
    thread.start()
    assert ends.ours.recv(1) == b""
    thread.join()


def test_end_is_seen_without_waiting(ends: Ends) -> None:
    assert not ends.ours.has_ended()
    ends.theirs.close()
    assert ends.ours.has_ended()


def test_key_of_the_server_is_known_to_the_client_only(ends: Ends, certificates: Certificates) -> None:
    key = ends.ours.tls.peer_key
    assert key is not None
    assert pin_of(certificates.certfile) == f"sha256//{base64.b64encode(key).decode()}"
    assert ends.theirs.tls.peer_key is None


def test_key_is_known_before_it_is_proven_and_not_without_a_certificate(
    certificates: Certificates, client: TlsContext
) -> None:
    ends = Ends(certificates, client)
    with ends.ours, ends.theirs:
        assert ends.ours.tls.peer_key is None
    refusing = Ends(certificates, TlsContext(ssl.create_default_context()))
    assert _rejected(refusing) == "unable to get local issuer certificate"
    assert refusing.ours.tls.peer_key is not None


def test_closed_one_touches_no_descriptor(ends: Ends) -> None:
    ends.ours.close()
    for use in (lambda: ends.ours.sendall(b"x"), lambda: ends.ours.recv(1)):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            use()


def test_close_says_farewell(certificates: Certificates, client: TlsContext) -> None:
    """Python's TLS tells an end from a connection that broke, if it shall not ignore the difference."""
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    rules.load_cert_chain(certificates.certfile, certificates.keyfile)
    here, there = socket.socketpair()
    there.settimeout(SOON)
    ours = secured(here, client, "localhost")
    with ThreadPoolExecutor(1) as pool:
        wrap = partial(rules.wrap_socket, there, server_side=True, suppress_ragged_eofs=False)
        accepted = pool.submit(wrap)
        ours.shake_hands()
    with accepted.result() as theirs:
        file = ours.makefile("rb")
        ours.close()
        theirs.sendall(b"the last answer")
        assert file.read(15) == b"the last answer"
        file.close()
        assert theirs.recv(1) == b""


def test_plain_socket_stays_with_its_owner_when_it_cannot_be_secured(client: TlsContext) -> None:
    here, there = socket.socketpair()
    with here, there:
        with pytest.raises(UnicodeError):
            SecureSocket(here, client, "label" * 20)
        here.sendall(b"x")
        assert there.recv(1) == b"x"


def test_authority_that_is_not_trusted_is_told(certificates: Certificates) -> None:
    ends = Ends(certificates, TlsContext(ssl.create_default_context()))
    assert _rejected(ends) == "unable to get local issuer certificate"


def test_flags_of_the_rules_are_kept(certificates: Certificates) -> None:
    """Python 3.13 is stricter by default, by such flags."""
    rules = ssl.create_default_context()
    rules.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    ends = Ends(certificates, TlsContext(rules, ca_file=str(certificates.cafile)))
    assert _rejected(ends) == "unable to get certificate CRL"


def test_insecure_trusts_anyone_by_any_name(certificates: Certificates) -> None:
    rules = ssl.create_default_context()
    rules.check_hostname = False
    rules.verify_mode = ssl.CERT_NONE
    here, there = socket.socketpair()
    with (
        secured(there, server_context(certificates)) as theirs,
        secured(here, TlsContext(rules), "example.org") as ours,
    ):
        thread = threading.Thread(target=theirs.shake_hands)
        thread.start()
        ours.shake_hands()
        thread.join()


@pytest.mark.parametrize(
    ("name", "host", "reason"),
    [
        ("im*.example.com", "images.example.com", "hostname mismatch"),
        ("*es.example.com", "images.example.com", "hostname mismatch"),
        ("i*s.example.com", "images.example.com", "hostname mismatch"),
        ("*.example.com", "one.images.example.com", "hostname mismatch"),
        ("*.example.com", "images.example.com", None),
    ],
)
def test_wildcard_stands_for_one_whole_label(tmp_path: Path, name: str, host: str, reason: str | None) -> None:
    """RFC 9525, section 6.3."""
    certificate, key = issue_to_itself(tmp_path, name)
    here, there = socket.socketpair()
    server = TlsContext(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert_file=str(certificate), key_file=str(key))
    client = TlsContext(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca_file=str(certificate))
    thread = threading.Thread(target=_serve_in_vain, args=(secured(there, server),))
    thread.start()
    with secured(here, client, host) as ours:
        if reason is None:
            ours.shake_hands()
        else:
            with pytest.raises(OSError, match=reason):
                ours.shake_hands()
    thread.join()


def test_host_without_a_name_is_refused(client: TlsContext) -> None:
    """OpenSSL believes any server then: SSL_set1_host(3)."""
    here, there = socket.socketpair()
    with here, there, pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        client.wrap(here, "")


def _rejected(ends: Ends) -> str | None:
    """Return why the client does not believe the server."""
    thread = threading.Thread(target=_serve_in_vain, args=(ends.theirs,))
    thread.start()
    with ends.ours, pytest.raises(OSError, match=r".") as caught:
        ends.ours.shake_hands()
    thread.join()
    assert caught.value.errno == errno.EKEYREJECTED
    return caught.value.strerror


def _serve_in_vain(server: SecureSocket) -> None:
    with server, contextlib.suppress(OSError):
        server.shake_hands()
        server.recv(1)
