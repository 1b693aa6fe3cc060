# SPDX-License-Identifier: Apache-2.0
"""A server of the images API, on a real socket with TLS, with answers that a test makes."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from tests.support.daemon import Certificates
from tests.support.polling import eventually

#: The bytes of an answer, or a function that serves the connection after the head, and reads the body itself.
Script = bytes | Callable[["Peer", "Asked"], object]


@dataclass(frozen=True)
class Asked:
    """A request. Its body is without framing."""

    line: str
    fields: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        (value,) = [value for found, value in self.fields if found.lower() == name.lower()]
        return value

    @property
    def names(self) -> set[str]:
        return {name.lower() for name, _ in self.fields}


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer. Names of fields have underscores in the place of dashes. An empty value removes a field."""
    fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
    return "\r\n".join(lines).encode() + body


def first_byte(size: int) -> bytes:
    """Return the answer to a request for the first byte, which has the size of the image."""
    return answer(206, b"\0", Content_Range=f"bytes 0-0/{size}")


def options(**changes: object) -> bytes:
    """Return an answer to OPTIONS."""
    told = {"features": ["checksum", "extents", "flush", "zero"], "max_readers": 8, "max_writers": 8, **changes}
    return answer(200, json.dumps(told).encode(), Allow="OPTIONS,GET,PUT,PATCH")


class Peer:
    """One connection."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self._received = bytearray()

    def head(self) -> Asked:
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:] if line)]
        return Asked(lines[0], fields, b"")

    def body(self, asked: Asked) -> bytes:
        """Return the body of a request. Raises EOFError if it is cut."""
        if "transfer-encoding" not in asked.names:
            return self._exactly(int(asked["Content-Length"]) if "content-length" in asked.names else 0)
        found = b""
        while size := int(self._until(b"\r\n"), 16):
            found += self._exactly(size + 2)[:-2]
        assert self._exactly(2) == b"\r\n"
        return found

    def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._more()
        return self._exactly(self._received.index(end) + len(end))

    def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            self._more()
        found = bytes(self._received[:count])
        del self._received[:count]
        return found

    def _more(self) -> None:
        data = self.sock.recv(256 * 1024)
        if not data:
            raise EOFError
        self._received += data


class ScriptedServer:
    """Answer the requests of all connections by a list of scripts, one after the other, and keep the requests."""

    def __init__(self, certificates: Certificates) -> None:
        self.scripts: list[Script] = []
        self.asked: list[Asked] = []
        self.connections = 0
        self.open = 0
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates.certfile, certificates.keyfile)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._peers: list[ssl.SSLSocket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        eventually(lambda: self.open == 0, "the connections end")

    def url(self, ticket_id: str) -> str:
        return f"https://localhost:{self._listening.getsockname()[1]}/images/{ticket_id}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        self.open += 1
        try:
            with self._context.wrap_socket(plain, server_side=True) as sock:
                self.connections += 1
                self._peers.append(sock)
                peer = Peer(sock)
                while True:
                    self._answer(peer, peer.head())
        except (OSError, EOFError):
            pass  # the daemon has closed
        finally:
            self.open -= 1

    def _answer(self, peer: Peer, asked: Asked) -> None:
        script = self.scripts.pop(0)
        if not isinstance(script, bytes):
            self.asked.append(asked)
            script(peer, asked)
            return
        self.asked.append(replace(asked, body=peer.body(asked)))
        peer.sock.sendall(script)
