# SPDX-License-Identifier: Apache-2.0
"""TLS handshakes of tlslite-ng that are changed on the way, and bytes that are none. With a Python that has tlslite-ng:

    python broken_handshakes.py PORT

One line for each: the change, and what the server did. Status 1 if it took one, or neither answered nor closed in 20 s.
"""

import socket
import struct
import sys
from typing import Any

from tlslite.api import HandshakeSettings, TLSConnection  # type: ignore[import-not-found]
from tlslite.constants import Fault  # type: ignore[import-not-found]
from tlslite.errors import TLSError  # type: ignore[import-not-found]

#: Records that are no ClientHello: type, version, length, and what follows.
RAW = {
    "SSL 2 ClientHello": bytes.fromhex("802e0100020015000000100100800200800300800400800500800600400700c0") + bytes(16),
    "record of 65535 bytes": struct.pack(">BHH", 22, 0x0301, 65535) + bytes(65535),
    "empty handshake record": struct.pack(">BHH", 22, 0x0301, 0),
    "application data first": struct.pack(">BHH", 23, 0x0303, 5) + b"hello",
    "heartbeat first": struct.pack(">BHH", 24, 0x0303, 3) + b"\x01\x40\x00",
    "alert first": struct.pack(">BHH", 21, 0x0303, 2) + b"\x02\x28",
    "ClientHello of 16 MiB": struct.pack(">BHH", 22, 0x0301, 16000) + b"\x01\xff\xff\xff" + bytes(15996),
    "ClientHello without ciphers": struct.pack(">BHH", 22, 0x0301, 45) + b"\x01\x00\x00\x29\x03\x03" + bytes(32 + 7),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
VERSIONS = {"TLS 1.2": (3, 3), "TLS 1.3": (3, 4)}
OLD = {"SSL 3": (3, 0), "TLS 1.0": (3, 1), "TLS 1.1": (3, 2)}


class Flipping:
    """A socket that changes the last byte of its n-th message, from 0: the tag of an encrypted record."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self._sock = sock
        self._left = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(self._changed(data))

    def send(self, data: bytes) -> int:
        return self._sock.send(self._changed(data))

    def _changed(self, data: bytes) -> bytes:
        self._left -= 1
        return bytes(data[:-1]) + bytes([data[-1] ^ 1]) if self._left == -1 else bytes(data)


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.settimeout(20)
    return sock


def with_fault(port: int, version: tuple[int, int], fault: int | None, changed: int) -> str:
    with connect(port) as sock:
        connection = TLSConnection(Flipping(sock, changed))
        connection.fault = fault
        settings = HandshakeSettings()
        settings.minVersion = settings.maxVersion = version
        try:
            connection.handshakeClientCert(settings=settings)
            connection.write(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = connection.read(max=12)
        except TLSError as e:
            return f"refused: {type(e).__name__} {e}".splitlines()[0][:100]
        except TimeoutError:
            return "SILENT"
        except OSError as e:
            return f"closed: {e}"
        return "TAKEN" if answer else "closed"


def with_bytes(port: int, data: bytes) -> str:
    with connect(port) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(100)
        except TimeoutError:
            return "SILENT"
        except OSError as e:
            return f"closed: {e}"
        return f"alert {answer[6]}" if answer[:1] == b"\x15" and len(answer) > 6 else f"closed after {answer!r}"


def main() -> int:
    port, words = int(sys.argv[1]), {}
    words["TLS 1.2, bad finished message"] = with_fault(port, VERSIONS["TLS 1.2"], Fault.badFinished, 1 << 30)
    for name, version in VERSIONS.items():
        for number, part in enumerate(("ClientHello", "Finished", "data")):
            words[f"{name}, a bit of {part}"] = with_fault(port, version, None, number)
    for name, version in OLD.items():
        words[name] = with_fault(port, version, None, 1 << 30)
    for name, data in RAW.items():
        words[name] = with_bytes(port, data)
    for name, word in words.items():
        print(f"{name}: {word}")
    return int(any(word in ("TAKEN", "SILENT") for word in words.values()))


if __name__ == "__main__":
    sys.exit(main())
