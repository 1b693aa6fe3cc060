# SPDX-License-Identifier: Apache-2.0
import contextlib
import errno
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client.server.secure_socket import SecureSocket
from imageio_daemon.net import tls_socket
from imageio_daemon.net.tls_socket import WANTS_INPUT, WANTS_ROOM, TlsContext, TlsSocket
from imageio_daemon.units import KiB, MiB
from tests.support.daemon import Certificates
from tests.support.polling import SOON
from tests.support.tls import secured, server_context
from tests.support.tlsflood import FloodingClient


@pytest.fixture
def server(certificates: Certificates) -> TlsContext:
    return server_context(certificates)


class Pair:
    """Ours, which serves, and Python's: the same TLS on both ends of a TCP connection."""

    def __init__(self, server: TlsContext, client: ssl.SSLContext) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            plain = socket.create_connection(listening.getsockname(), SOON)
            accepted, _ = listening.accept()
        self.ours = secured(accepted, server)
        thread = threading.Thread(target=self.ours.shake_hands)
        thread.start()
        self.theirs = client.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
        thread.join()

    @property
    def tls(self) -> TlsSocket:
        return self.ours.tls

    def close(self) -> None:
        self.theirs.close()
        self.ours.close()


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def pair(request: pytest.FixtureRequest, server: TlsContext, certificates: Certificates) -> Iterator[Pair]:
    client = ssl.create_default_context(cafile=certificates.cafile)
    client.maximum_version = request.param
    client.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # an end without a farewell is an error
    pair = Pair(server, client)
    yield pair
    pair.close()


# Receiving


def test_what_is_there_is_read_at_once_however_many_records(pair: Pair) -> None:
    data = os.urandom(100 * KiB)
    pair.theirs.sendall(data)
    _wait_for(pair.ours, len(data))
    memory = memoryview(bytearray(MiB))
    assert pair.tls.readinto(memory) == len(data)
    assert memory[: len(data)] == data


def test_nothing_there_wants_input(pair: Pair) -> None:
    assert pair.tls.readinto(memoryview(bytearray(1))) == WANTS_INPUT


def test_rest_of_a_record_is_pending(pair: Pair) -> None:
    pair.theirs.sendall(b"head and body")
    assert pair.ours.recv(4) == b"head"
    assert pair.tls.pending
    assert pair.ours.recv(9) == b" and body"
    assert not pair.tls.pending


def test_farewell_is_the_end(pair: Pair) -> None:
    threading.Thread(target=_unwrap, args=(pair.theirs,)).start()
    assert pair.ours.recv(1) == b""


def test_end_without_a_farewell_is_an_end_too(pair: Pair) -> None:
    pair.theirs.sendall(b"x")
    pair.theirs.shutdown(socket.SHUT_RDWR)
    assert pair.ours.recv(2) == b"x"
    assert pair.ours.recv(1) == b""


def test_reset_is_an_error_each_time(pair: Pair) -> None:
    pair.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    socket.socket(fileno=pair.theirs.detach()).close()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            pair.ours.recv(1)
    with pytest.raises(ConnectionResetError):
        pair.ours.sendall(b"x")


def test_garbage_is_an_error_with_its_reason(pair: Pair) -> None:
    with socket.socket(fileno=pair.theirs.detach()) as plain:
        plain.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(OSError, match=r"[a-z]+ [a-z]+") as caught:
            pair.ours.recv(1)
    assert caught.value.errno == errno.EPROTO


# Records without data


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def flood(request: pytest.FixtureRequest, server: TlsContext) -> Iterator[tuple[SecureSocket, FloodingClient]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        plain = socket.create_connection(listening.getsockname(), SOON)
        accepted, _ = listening.accept()
    ours = secured(accepted, server)
    thread = threading.Thread(target=ours.shake_hands)
    thread.start()
    client = FloodingClient(plain, request.param)
    thread.join()
    yield ours, client
    client.close()
    ours.close()


def test_peer_that_sends_many_records_without_data_is_given_up(flood: tuple[SecureSocket, FloodingClient]) -> None:
    ours, client = flood
    client.sock.sendall(client.idle_records(200))
    for _ in range(2):
        with pytest.raises(OSError, match="too many records without data") as caught:
            ours.recv(1)
        assert caught.value.errno == errno.EPROTO


def test_records_without_data_are_counted_over_many_calls(flood: tuple[SecureSocket, FloodingClient]) -> None:
    ours, client = flood

    def trickle() -> None:
        for _ in range(200):
            record = client.idle_records(1)
            client.sock.sendall(record)
            _wait_for(ours, len(record))
            assert ours.tls.readinto(memoryview(bytearray(16))) == WANTS_INPUT

    with pytest.raises(OSError, match="too many records without data"):
        trickle()


def test_new_keys_for_each_request_are_no_flood(flood: tuple[SecureSocket, FloodingClient]) -> None:
    ours, client = flood
    for _ in range(200):
        client.sock.sendall(client.idle_records(1) + client.data_record(bytes(300)))
        assert _receive(ours, 300) == bytes(300)


def test_data_of_before_allows_no_more_records_without(flood: tuple[SecureSocket, FloodingClient]) -> None:
    ours, client = flood
    content = bytes(8 * KiB)
    for _ in range(16):
        client.sock.sendall(client.data_record(content))
        assert _receive(ours, len(content)) == content
    client.sock.sendall(client.idle_records(200))
    with pytest.raises(OSError, match="too many records without data"):
        ours.recv(1)


def test_records_of_one_call_are_bounded_and_the_rest_is_pending(flood: tuple[SecureSocket, FloodingClient]) -> None:
    ours, client = flood
    records = b"".join(client.data_record(b"x") for _ in range(1000))
    client.sock.sendall(records)
    _wait_for(ours, len(records))
    memory = memoryview(bytearray(MiB))
    counts: list[int] = []
    while sum(counts) < 1000:
        counts.append(ours.tls.readinto(memory))
        assert ours.tls.pending or sum(counts) == 1000
    assert max(counts) <= 256


@pytest.mark.parametrize("before", [b"", b"before"])
def test_part_of_a_record_is_not_pending_until_its_rest_is_there(
    flood: tuple[SecureSocket, FloodingClient], before: bytes
) -> None:
    """Who waits for the socket would not wait, and find nothing."""
    ours, client = flood
    whole = client.data_record(before) if before else b""
    record = client.data_record(b"x" * KiB)
    begun = whole + record[:500]
    client.sock.sendall(begun)
    _wait_for(ours, len(begun))
    memory = memoryview(bytearray(MiB))
    assert ours.tls.readinto(memory) == (len(before) or WANTS_INPUT)
    assert not ours.tls.pending
    client.sock.sendall(record[500:] + client.data_record(b"y"))
    _wait_for(ours, len(record) - 500)
    assert ours.tls.readinto(memory[:1000]) == 1000
    assert ours.tls.pending
    assert _receive(ours, 25) == b"x" * 24 + b"y"
    assert not ours.tls.pending


def test_handshake_in_a_thousand_records_is_given_up(server: TlsContext) -> None:
    outgoing = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()[5:]
    ours, theirs = socket.socketpair()
    with theirs, secured(ours, server) as tls:
        theirs.sendall(b"".join(b"\x16\x03\x01\0\1" + hello[at : at + 1] for at in range(len(hello))))
        with pytest.raises(OSError, match="too many records without data"):
            tls.shake_hands()


# Sending


def test_all_that_is_written_arrives(pair: Pair) -> None:
    data = os.urandom(4 * MiB + 7)
    thread = threading.Thread(target=pair.ours.sendall, args=(data,))
    thread.start()
    assert _receive(pair.theirs, len(data)) == data
    thread.join()


def test_full_socket_wants_room_and_then_the_same_again(pair: Pair) -> None:
    data = os.urandom(32 * MiB)
    sent = 0
    while (count := pair.tls.write(memoryview(data)[sent:])) > 0:
        sent += count
    assert count == WANTS_ROOM
    thread = threading.Thread(target=pair.ours.sendall, args=(data[sent:],))
    thread.start()
    assert _receive(pair.theirs, len(data)) == data
    thread.join()


def test_end_is_a_farewell(pair: Pair) -> None:
    pair.ours.sendall(b"x")
    pair.tls.end()
    assert _receive(pair.theirs, 1) == b"x"
    assert pair.theirs.recv(1) == b""  # not SSLEOFError


def test_write_after_the_peer_has_gone_is_an_error(pair: Pair) -> None:
    pair.theirs.close()
    with pytest.raises(OSError, match=r"."):
        pair.ours.sendall(bytes(64 * MiB))


# Handshakes


def test_handshake_with_rubbish_fails_with_its_reason(server: TlsContext) -> None:
    ours, theirs = socket.socketpair()
    with theirs, secured(ours, server) as tls:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(OSError, match="http request") as caught:
            tls.shake_hands()
        assert caught.value.errno == errno.EPROTO


def test_handshake_whose_peer_leaves_fails(server: TlsContext) -> None:
    ours, theirs = socket.socketpair()
    with secured(ours, server) as tls:
        theirs.close()
        with pytest.raises(OSError, match=r"."):
            tls.shake_hands()


def test_failed_handshake_stays_failed(server: TlsContext) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(64))
        tls = server.wrap(ours)
        ours.setblocking(False)
        for _ in range(2):
            with pytest.raises(OSError, match=r"."):
                tls.handshake()
        with pytest.raises(OSError, match=r"."):
            tls.readinto(memoryview(bytearray(1)))


@pytest.mark.parametrize(("name", "accepted"), [("localhost", True), ("127.0.0.1", True), ("example.org", False)])
def test_client_checks_the_name_of_the_server(certificates: Certificates, name: str, accepted: bool) -> None:
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = TlsContext(rules, ca_file=str(certificates.cafile))
    python = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    python.load_cert_chain(certificates.certfile, certificates.keyfile)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve, args=(python, theirs))
    thread.start()
    with secured(ours, client, name) as tls:
        if accepted:
            tls.shake_hands()
            assert tls.recv(5) == b"hello"
        else:
            with pytest.raises(OSError, match="hostname mismatch") as caught:
                tls.shake_hands()
            assert caught.value.errno == errno.EKEYREJECTED
    thread.join()


# Authorities of the system


@pytest.fixture
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let this be a host on which Python finds no authorities."""
    monkeypatch.setenv("SSL_CERT_FILE", "/missing/file")
    monkeypatch.setenv("SSL_CERT_DIR", "/missing/directory")
    monkeypatch.setattr(tls_socket, "_SYSTEM_CA_FILES", ())
    return monkeypatch


def test_authorities_that_python_uses_are_trusted(
    no_authorities: pytest.MonkeyPatch, server: TlsContext, certificates: Certificates
) -> None:
    no_authorities.setenv("SSL_CERT_FILE", str(certificates.cafile))
    _shake_hands(server)


def test_authorities_are_found_where_distributions_keep_them(
    no_authorities: pytest.MonkeyPatch, server: TlsContext, certificates: Certificates
) -> None:
    no_authorities.setattr(tls_socket, "_SYSTEM_CA_FILES", ("/missing/file", str(certificates.cafile)))
    _shake_hands(server)


def test_without_authorities_no_server_is_trusted(no_authorities: pytest.MonkeyPatch, server: TlsContext) -> None:
    with pytest.raises(OSError, match="unable to get local issuer") as caught:
        _shake_hands(server)
    assert caught.value.errno == errno.EKEYREJECTED


def _shake_hands(server: TlsContext) -> None:
    """Connect a client that was told of no authorities."""
    client = TlsContext(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    ours, theirs = socket.socketpair()
    with secured(theirs, server) as serving, secured(ours, client, "localhost") as tls:
        thread = threading.Thread(target=_accept, args=(serving,))
        thread.start()
        try:
            tls.shake_hands()
        finally:
            tls.close()
            thread.join()


def _accept(serving: SecureSocket) -> None:
    with contextlib.suppress(OSError):
        serving.shake_hands()


# Contexts


def test_files_that_are_not_there_are_an_error(certificates: Certificates) -> None:
    with pytest.raises(OSError, match=r"."):
        TlsContext(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert_file="/missing", key_file=str(certificates.keyfile))


def test_key_of_another_certificate_is_an_error(certificates: Certificates, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    certificates.ca.issue_cert("example.org").private_key_pem.write_to_path(other)
    with pytest.raises(OSError, match="mismatch"):
        TlsContext(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert_file=str(certificates.certfile), key_file=str(other))


def test_rules_of_the_context_are_kept(server: TlsContext, certificates: Certificates) -> None:
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.minimum_version = ssl.TLSVersion.TLSv1_3
    strict = server_context(certificates, rules)
    client = ssl.create_default_context(cafile=certificates.cafile)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    ours, theirs = socket.socketpair()
    with secured(ours, strict) as tls:
        thread = threading.Thread(target=_connect, args=(client, theirs))
        thread.start()
        with pytest.raises(OSError, match="protocol"):
            tls.shake_hands()
    thread.join()


def _unwrap(sock: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        sock.unwrap()


def _serve(context: ssl.SSLContext, sock: socket.socket) -> None:
    try:
        with context.wrap_socket(sock, server_side=True) as tls:
            tls.sendall(b"hello")
    except OSError:
        sock.close()


def _connect(context: ssl.SSLContext, sock: socket.socket) -> None:
    try:
        context.wrap_socket(sock, server_hostname="localhost").close()
    except OSError:
        sock.close()


def _receive(sock: ssl.SSLSocket | SecureSocket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += sock.recv(MiB)
    return bytes(data)


def _wait_for(sock: SecureSocket, size: int) -> None:
    """Wait until the kernel has at least so many bytes."""
    peeked = 0
    while peeked < size:
        peeked = len(socket.socket.recv(sock, 2 * size, socket.MSG_PEEK))
