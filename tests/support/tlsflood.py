# SPDX-License-Identifier: Apache-2.0
"""A client of TLS that sends records without data, as fast as the socket takes them.

Python's ssl cannot send such records. They are made with the connection's keys (RFC 8446 5.2, 7.3; RFC 5246 6.3;
RFC 5288 3).
"""

import hmac
import itertools
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

PROJECT = Path(__file__).resolve().parents[2]

_HANDSHAKE, _DATA = 22, 23
#: A request for a new handshake, whose content is ignored, and a change of keys that needs no answer.
_CLIENT_HELLO = b"\1\0\0\0"
_KEY_UPDATE = b"\x18\0\0\1\0"


class Keys13:
    """Encrypt a client's records of TLS 1.3 with AES-256-GCM."""

    def __init__(self, secret: bytes) -> None:
        self._take(secret)

    def key_update(self) -> bytes:
        """Return a record that changes the keys. Later records have the new keys."""
        record = self.record(_HANDSHAKE, _KEY_UPDATE)
        self._take(_expand_label(self._secret, b"traffic upd", 48))
        return record

    def record(self, kind: int, content: bytes) -> bytes:
        header = struct.pack(">BHH", _DATA, 0x0303, len(content) + 1 + 16)
        nonce = bytes(a ^ b for a, b in zip(self._iv, self._count.to_bytes(12), strict=True))
        self._count += 1
        return header + self._cipher.encrypt(nonce, content + bytes([kind]), header)

    def _take(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_expand_label(secret, b"key", 32))
        self._iv = _expand_label(secret, b"iv", 12)
        self._count = 0


class Keys12:
    """Encrypt a client's records of TLS 1.2 with AES-256-GCM."""

    def __init__(self, master: bytes, client_random: bytes, server_random: bytes) -> None:
        block = _prf(master, b"key expansion" + server_random + client_random, 72)
        self._cipher, self._salt = AESGCM(block[:32]), block[64:68]
        self._count = 1  # after the end of the handshake

    def record(self, kind: int, content: bytes) -> bytes:
        number = self._count.to_bytes(8)
        self._count += 1
        sealed = self._cipher.encrypt(
            self._salt + number, content, number + struct.pack(">BHH", kind, 0x0303, len(content))
        )
        return struct.pack(">BHH", kind, 0x0303, len(sealed) + 8) + number + sealed


class FloodingClient:
    """A connection after its handshake."""

    def __init__(self, sock: socket.socket, version: ssl.TLSVersion) -> None:
        self.sock = sock
        self._new = version is ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile() as log:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
            context.set_ciphers("ECDHE+AESGCM+AES256")
            context.keylog_filename = log.name
            server_hello = self._shake_hands(context)
            secrets = {kind: value for kind, *value in (line.split() for line in log.read().decode().splitlines())}
        if self._new:
            self._keys13 = Keys13(bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"][1]))
        else:
            client_random, master = map(bytes.fromhex, secrets["CLIENT_RANDOM"])
            self._keys12 = Keys12(master, client_random, server_hello[11:43])

    @classmethod
    def connect(cls, address: tuple[str, int], version: ssl.TLSVersion) -> Self:
        return cls(socket.create_connection(address, timeout=20), version)

    def idle_records(self, count: int) -> bytes:
        """Return records without data: changes of keys, or in TLS 1.2 requests for a new handshake."""
        if self._new:
            return b"".join(self._keys13.key_update() for _ in range(count))
        return b"".join(self._keys12.record(_HANDSHAKE, _CLIENT_HELLO) for _ in range(count))

    def data_record(self, content: bytes) -> bytes:
        """Return a record with data."""
        return self._keys13.record(_DATA, content) if self._new else self._keys12.record(_DATA, content)

    def send_all(self, data: bytes) -> None:
        """Send, until the server has closed."""
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return

    def is_cut(self) -> bool:
        """Return whether the server closes the connection. Reads all bytes before that."""
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.sock.close()

    def _shake_hands(self, context: ssl.SSLContext) -> bytes:
        """Do the handshake, and return the server's first bytes."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        received = b""
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self.sock.sendall(outgoing.read())
                piece = self.sock.recv(65536)
                received += piece
                incoming.write(piece)
                if not piece:
                    raise ConnectionResetError("the server closed in the handshake") from None
            else:
                self.sock.sendall(outgoing.read())
                return received


def _expand_label(secret: bytes, label: bytes, length: int) -> bytes:
    label = b"tls13 " + label
    info = struct.pack(">HB", length, len(label)) + label + b"\0"
    return HKDFExpand(hashes.SHA384(), length, info).derive(secret)


def _prf(secret: bytes, seed: bytes, length: int) -> bytes:
    made, link = b"", seed
    while len(made) < length:
        link = hmac.digest(secret, link, "sha384")
        made += hmac.digest(secret, link + seed, "sha384")
    return made[:length]


@contextmanager
def flooding(port: int, connections: int) -> Iterator[None]:
    """Flood from another process, with this number of connections at a time. A connection that is cut is made again."""
    command = [sys.executable, "-m", __name__, str(port), str(connections)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(1) == b"."
            yield
            assert process.poll() is None
        finally:
            process.kill()


def _flood(address: tuple[str, int], versions: Iterator[ssl.TLSVersion], ready: threading.Barrier) -> None:
    while True:
        with suppress(OSError):
            client = FloodingClient.connect(address, next(versions))
            records = client.idle_records(2000)
            if not ready.broken:
                ready.wait()
            client.send_all(records)
            client.close()


def _main() -> None:
    address, count = ("127.0.0.1", int(sys.argv[1])), int(sys.argv[2])
    versions = itertools.cycle([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    ready = threading.Barrier(count + 1)
    for _ in range(count):
        threading.Thread(target=_flood, args=(address, versions, ready), daemon=True).start()
    ready.wait()
    ready.abort()
    sys.stdout.write(".")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _main()
