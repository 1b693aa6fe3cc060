# SPDX-License-Identifier: Apache-2.0
"""A crowd of clients without a ticket, in a process of its own. They connect again as fast as they can."""

import itertools
import selectors
import socket
import ssl
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


@contextmanager
def crowd(port: int, kind: str, *, addresses: int = 1, connections: int = 1024) -> Iterator[None]:
    """Keep this number of connections open during the block. Each new one replaces the oldest.

    The kind `silent` sends nothing, `hello` only begins a TLS handshake, `info` sends a request that needs no ticket,
    and `nbd` sends the first bytes of a negotiation.
    """
    command = [sys.executable, "-m", __name__, str(port), kind, str(addresses), str(connections)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(1) == b"."
            yield
            assert process.poll() is None
        finally:
            process.kill()


class _Member:
    """One connection."""

    def __init__(self, port: int, kind: str, source: str, selector: selectors.BaseSelector) -> None:
        self._kind = kind
        self._selector = selector
        self._sock = socket.socket()
        self._sock.bind((source, 0))
        self._sock.settimeout(5)
        self._sock.connect(("127.0.0.1", port))
        self._sock.setblocking(False)
        selector.register(self._sock, selectors.EVENT_READ, self)
        self._tls: ssl.SSLObject | None = None
        if kind == "nbd":
            self._send(b"\0\0\0\3")
        elif kind in ("hello", "info"):
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = _context().wrap_bio(self._incoming, self._outgoing)
            self._shake()

    def go_on(self) -> None:
        """Do the next step."""
        data = b""
        with suppress(OSError):
            data = self._sock.recv(65536)
        if not data:
            self.close()
        elif self._kind == "info":
            self._incoming.write(data)
            self._shake()

    def close(self) -> None:
        if self._sock.fileno() != -1:
            self._selector.unregister(self._sock)
            self._sock.close()

    def _shake(self) -> None:
        assert self._tls is not None
        with suppress(ssl.SSLError):
            self._tls.do_handshake()
            self._tls.write(b"GET /info/ HTTP/1.1\r\nHost: x\r\n\r\n")
            self._kind = "asked"
        self._send(self._outgoing.read())

    def _send(self, data: bytes) -> None:
        with suppress(OSError):
            self._sock.send(data)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _main() -> None:
    port, kind, addresses, connections = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sources = itertools.cycle([f"127.1.{number // 250}.{number % 250 + 1}" for number in range(addresses)])
    members: deque[_Member] = deque()
    with selectors.DefaultSelector() as selector:
        for count in itertools.count():
            with suppress(OSError):
                members.append(_Member(port, kind, next(sources), selector))
            if len(members) > connections:
                members.popleft().close()
            for key, _ in selector.select(0):
                key.data.go_on()
            if count == connections:
                sys.stdout.write(".")
                sys.stdout.flush()


if __name__ == "__main__":
    _main()
