# SPDX-License-Identifier: Apache-2.0
"""The unix socket of a server on this host, which has to prove that it is the server's (docs/adr/0044)."""

import contextlib
import errno
import hmac
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeGuard

from ...net.unix_places import place_of
from ...units import KiB
from ..connecting import unix_connected

#: Seconds in which the socket has to prove itself.
PROOF_TIMEOUT = 5.0
#: Most bytes of the answer to the question.
MAX_ANSWER = 4 * KiB
#: A part of the proof, which has at most 128 characters.
_TOLD = re.compile("[0-9a-f]{1,128}")


def _is_address(text: str) -> bool:
    """Return whether a text is a path or an abstract name. Only the latter begins with NUL (unix(7))."""
    try:
        os.fsencode(text)
    except UnicodeError:
        return False
    return bool(text.strip("\0")) and "\0" not in text[1:]


@dataclass(frozen=True)
class LocalSocket:
    """What a server has told by TLS about its socket: the address, where it leads to, and the answer to a question.

    The address may lead to another program, which another user has started. So connect() compares where it leads to.
    Send nothing before prove().
    """

    address: str
    place: str = field(repr=False)
    question: str = field(repr=False)
    answer: str = field(repr=False)

    @classmethod
    def told(cls, address: str, proof: Any) -> Self | None:
        """Return the socket with its proof from the answer to OPTIONS, or None without a valid proof."""
        if not isinstance(proof, dict) or not _is_address(address):
            return None
        parts = [part for name in ("place", "question", "answer") if _is_told(part := proof.get(name))]
        return cls(address, *parts) if len(parts) == 3 else None

    def connect(self, timeout: float) -> socket.socket:
        """Return a connected socket, whose peer still has to prove itself. Raises OSError."""
        with _opened(self.address) as (place, way):
            if not hmac.compare_digest(place, self.place):
                raise _doubt("its address leads to another place here than on the server")
            return unix_connected(way, timeout)

    def prove(self, sock: socket.socket) -> None:
        """Ask the question, which is no secret. Raises OSError if the answer differs from the one by TLS."""
        sock.sendall(f"GET /local/{self.question} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        told = _answer(sock, time.monotonic() + PROOF_TIMEOUT)
        if not _is_told(told) or not hmac.compare_digest(told, self.answer):
            raise _doubt("it does not prove to be the server's: another program may have its name")


def _is_told(part: object) -> TypeGuard[str]:
    return isinstance(part, str) and _TOLD.fullmatch(part) is not None


def _answer(sock: socket.socket, deadline: float) -> object:
    """Receive the answer to the question, and nothing else. Raises OSError."""
    got = bytearray()
    while len(got) <= MAX_ANSWER:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)
        piece = sock.recv(MAX_ANSWER)
        got += piece
        head, _, body = got.partition(b"\r\n\r\n")
        if not piece or not head.startswith(b"HTTP/1.1 200 "[: len(got)]):
            break
        with contextlib.suppress(ValueError, RecursionError):  # the answer is not complete yet
            told = json.loads(body)
            return told.get("answer") if isinstance(told, dict) else None
    raise _doubt("it does not answer as the server's local service")


def _doubt(text: str) -> OSError:
    """Return the error for a socket that may be another program's, with the errno of TLS for an unverified peer."""
    return OSError(errno.EKEYREJECTED, text)


@contextlib.contextmanager
def _opened(address: str) -> Iterator[tuple[str, str]]:
    """Yield the place of an address, and an address for connect(2) that surely leads there. Raises OSError."""
    if address.startswith("\0"):
        yield place_of(address), address
        return
    descriptor = os.open(address, os.O_PATH | os.O_CLOEXEC)
    try:
        yield place_of(descriptor), f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
