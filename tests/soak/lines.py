# SPDX-License-Identifier: Apache-2.0
"""Connections of one image's client, of each protocol, that can be ended at any byte."""

import contextlib
import itertools
import json
import random
import socket
import ssl
from abc import ABC, abstractmethod
from struct import Struct
from typing import TYPE_CHECKING, ClassVar

from imageio_daemon.nbdproto.constants import Command, CommandFlag, OptionType, Reply
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.option_payloads import InfoRequest, OptionHeader, OptionReply
from tests.support.http_client import Connection, DisconnectedError, connect_tls, connect_unix, encode_request
from tests.support.nbd_payloads import SimpleReply

if TYPE_CHECKING:
    # The lab has none of what it needs.
    from tests.support.daemon import Daemon

#: Longest silence, in seconds: storage is slow, but not that slow.
TIMEOUT = 30.0


class Lost(Exception):
    """The server has closed the connection, or there never was one."""


class Line(ABC):
    """One connection with requests for one ticket, one at a time."""

    kind: ClassVar[str]

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @abstractmethod
    def write(self, offset: int, data: bytes) -> bytes:
        """Return the bytes of a request."""

    @abstractmethod
    def zero(self, offset: int, length: int) -> bytes:
        """Return the bytes of a request."""

    @abstractmethod
    def trim(self, offset: int, length: int) -> bytes | None:
        """Return the bytes of a request; None: the protocol has none."""

    @abstractmethod
    def flush(self) -> bytes:
        """Return the bytes of a request."""

    @abstractmethod
    def answer(self) -> bool:
        """Return whether the request that was sent succeeded. Raises Lost."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes | None:
        """Return a part of the image; None: it is refused. Raises Lost."""

    def send(self, data: bytes) -> None:
        """Send bytes. Raises Lost."""
        try:
            self._sock.sendall(data)
        except (ConnectionError, ssl.SSLError) as e:
            raise Lost from e

    def reset(self) -> None:
        """Vanish."""
        with contextlib.suppress(OSError):
            if self._sock.family != socket.AF_UNIX:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, Struct("ii").pack(1, 0))
        self._sock.close()

    def close(self) -> None:
        """Leave."""
        self._sock.close()


class HttpLine(Line):
    """HTTP, by requests for C and, now and then, for aiohttp."""

    def __init__(self, sock: socket.socket, ticket: str, choose: random.Random) -> None:
        super().__init__(sock)
        self._connection = Connection(sock)
        self._url = f"/images/{ticket}"
        self._choose = choose
        self._method = ""

    def write(self, offset: int, data: bytes) -> bytes:
        flush = self._choose.choice(("", "?flush=n"))
        return self._encode("PUT", flush, {"Content-Range": f"bytes {offset}-{offset + len(data) - 1}/*"}, data)

    def zero(self, offset: int, length: int) -> bytes:
        document = {"op": "zero", "offset": offset, "size": length, "flush": self._choose.random() < 0.5}
        return self._encode("PATCH", "", {}, json.dumps(document).encode())

    def trim(self, offset: int, length: int) -> bytes | None:
        return None

    def flush(self) -> bytes:
        return self._encode("PATCH", "", {}, b'{"op": "flush"}')

    def answer(self) -> bool:
        return self._receive() is not None

    def read(self, offset: int, length: int) -> bytes | None:
        self.send(self._encode("GET", "", {"Range": f"bytes={offset}-{offset + length - 1}"}, None))
        return self._receive()

    def _encode(self, method: str, query: str, fields: dict[str, str], body: bytes | None) -> bytes:
        self._method = method
        if self._choose.random() < 0.3:
            fields["X-Nobody-Knows"] = "1"  # nor does C, and Python's way without aiohttp
        return encode_request(method, self._url + query, fields, body)

    def _receive(self) -> bytes | None:
        try:
            answer = self._connection.receive(to=self._method)
        except DisconnectedError as e:
            raise Lost from e
        return answer.body if answer.status in (200, 206) else None


class UnixHttp(HttpLine):
    """The local service."""

    kind = "http"

    def __init__(self, daemon: "Daemon", ticket: str, choose: random.Random) -> None:
        super().__init__(connect_unix(daemon.local_socket, timeout=TIMEOUT), ticket, choose)


class TlsHttp(HttpLine):
    """The remote service."""

    kind = "https"

    def __init__(self, daemon: "Daemon", ticket: str, choose: random.Random) -> None:
        context = ssl.create_default_context(cafile=str(daemon.cafile))
        super().__init__(connect_tls("localhost", daemon.port, context, timeout=TIMEOUT), ticket, choose)


class NbdLine(Line):
    """NBD with simple replies."""

    def __init__(self, sock: socket.socket, ticket: str, choose: random.Random) -> None:
        super().__init__(sock)
        self._choose = choose
        self._cookies = itertools.count(1)
        try:
            self._greet()
            self._negotiate(ticket)
        except BaseException:
            self._sock.close()
            raise

    def write(self, offset: int, data: bytes) -> bytes:
        return self._header(Command.WRITE, offset, len(data), self._fua()) + data

    def zero(self, offset: int, length: int) -> bytes:
        return self.request_zero(offset, length, self._fua() | self._choose.choice((0, CommandFlag.NO_HOLE)))

    def request_zero(self, offset: int, length: int, flags: int) -> bytes:
        """Return the bytes of a request to zero with these flags, of at most 4 GiB - 1."""
        return self._header(Command.WRITE_ZEROES, offset, length, flags)

    def trim(self, offset: int, length: int) -> bytes | None:
        return self._header(Command.TRIM, offset, length, self._fua())

    def flush(self) -> bytes:
        return self._header(Command.FLUSH, 0, 0, 0)

    def answer(self) -> bool:
        return SimpleReply.unpack(self._exactly(16)).error == 0

    def read(self, offset: int, length: int) -> bytes | None:
        self.send(self._header(Command.READ, offset, length, 0))
        return self._exactly(length) if self.answer() else None

    def _fua(self) -> int:
        return self._choose.choice((0, CommandFlag.FUA))

    def _header(self, command: int, offset: int, length: int, flags: int) -> bytes:
        return RequestHeader(command, flags, next(self._cookies), offset, length).pack(extended=False)

    def _greet(self) -> None:
        assert self._exactly(18) == b"NBDMAGICIHAVEOPT\0\3"
        self.send(b"\0\0\0\3")

    def _negotiate(self, ticket: str) -> None:
        self._ask(OptionType.GO, InfoRequest(ticket, ()).pack())

    def _ask(self, option: int, payload: bytes) -> None:
        """Negotiate an option. Raises Lost if it is refused."""
        self.send(OptionHeader(option, len(payload)).pack() + payload)
        while (reply := OptionReply.unpack(self._exactly(20))).reply != Reply.ACK:
            self._exactly(reply.length)
            if reply.reply >= Reply.ERR_UNSUP:
                raise Lost

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        try:
            while len(data) < count:
                piece = self._sock.recv(count - len(data))
                if not piece:
                    raise Lost
                data += piece
        except (ConnectionError, ssl.SSLError) as e:
            raise Lost from e
        return bytes(data)


class UnixNbd(NbdLine):
    """NBD without TLS."""

    kind = "nbd"

    def __init__(self, daemon: "Daemon", ticket: str, choose: random.Random) -> None:
        found = daemon.log.find(r"service=nbd-local address=(\S+)")
        assert found is not None
        super().__init__(connect_unix(found[1], timeout=TIMEOUT), ticket, choose)


class TlsNbd(NbdLine):
    """NBD with TLS."""

    kind = "nbds"

    def __init__(self, daemon: "Daemon", ticket: str, choose: random.Random) -> None:
        found = daemon.log.find(r"service=nbd address=.*port=(\d+)")
        assert found is not None
        self._context = ssl.create_default_context(cafile=str(daemon.cafile))
        super().__init__(socket.create_connection(("localhost", int(found[1])), TIMEOUT), ticket, choose)

    def _negotiate(self, ticket: str) -> None:
        self._ask(OptionType.STARTTLS, b"")
        try:
            self._sock = self._context.wrap_socket(self._sock, server_hostname="localhost")
        except (ConnectionError, ssl.SSLError) as e:
            raise Lost from e
        super()._negotiate(ticket)


LINES: tuple[type[UnixHttp | TlsHttp | UnixNbd | TlsNbd], ...] = (UnixHttp, TlsHttp, UnixNbd, TlsNbd)


def connect(kind: type[UnixHttp | TlsHttp | UnixNbd | TlsNbd], daemon: "Daemon", ticket: str, seed: int) -> Line:
    """Open a connection. Raises Lost."""
    try:
        return kind(daemon, ticket, random.Random(seed))
    except (ConnectionError, ssl.SSLError) as e:
        raise Lost from e
