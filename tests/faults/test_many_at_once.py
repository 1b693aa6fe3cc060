# SPDX-License-Identifier: Apache-2.0
"""Many long uploads and downloads that begin at once: each is answered soon."""

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemon import EAGER_PROGRAM, MakeDaemon
from tests.support.http_client import encode_request
from tests.support.images import Image, MiB, make_image

EACH = 64
SIZE = 16 * MiB
TICKETS = 4
#: Seconds until the slowest first answer, or this part of what all take together on a slow machine.
SOON = 1.0
SOON_PART = 1 / 3
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class Transfer:
    """One connection: what it has sent of a body and received of an answer, and when the first of that came."""

    sock: socket.socket
    uploads: bool
    sent: int = 0
    received: int = 0
    first: float = 0.0

    @property
    def done(self) -> bool:
        if self.uploads:
            return self.sent == SIZE and self.received > len(CONTINUE)
        return self.received >= SIZE

    def send(self, body: memoryview) -> None:
        self.sent += self.sock.send(body[self.sent : self.sent + MiB])

    def receive(self, memory: bytearray) -> None:
        count = self.sock.recv_into(memory)
        if not self.received:
            self.first = time.monotonic()
            assert memory.startswith(CONTINUE if self.uploads else b"HTTP/1.1 206 ")
        elif self.uploads:
            assert memory.startswith(b"HTTP/1.1 200 ")
        assert count
        self.received += count


def move(transfers: list[Transfer]) -> None:
    """Send and receive whatever can be, in one thread, until all are done."""
    body, memory = memoryview(bytes(SIZE)), bytearray(MiB)
    with selectors.DefaultSelector() as selector:
        for transfer in transfers:
            selector.register(transfer.sock, selectors.EVENT_READ, transfer)
        left = len(transfers)
        while left:
            for key, events in selector.select():
                transfer = key.data
                if events & selectors.EVENT_READ:
                    transfer.receive(memory)
                else:
                    transfer.send(body)
                if transfer.done:
                    selector.unregister(transfer.sock)
                    left -= 1
                elif transfer.uploads:
                    goes_on = transfer.sent + transfer.received > 0 and transfer.sent < SIZE
                    selector.modify(transfer.sock, selectors.EVENT_WRITE if goes_on else selectors.EVENT_READ, transfer)


def requests(image: Image, at: int) -> Iterator[tuple[bool, bytes]]:
    span = f"{at}-{at + SIZE - 1}"
    yield False, encode_request("GET", image.url, {"Range": f"bytes={span}"})
    head = {"Content-Range": f"bytes {span}/*", "Content-Length": str(SIZE), "Expect": "100-continue"}
    yield True, encode_request("PUT", image.url, head)


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_many_that_begin_at_once_are_all_answered_soon(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(program=EAGER_PROGRAM)
    images = [make_image(daemon, tmp_path)(size=EACH * SIZE // TICKETS) for _ in range(TICKETS)]
    with ExitStack() as cleanup:
        transfers, begins = [], []
        for number in range(EACH):
            image = images[number % TICKETS]
            for uploads, request in requests(image, number // TICKETS * SIZE):
                connection = cleanup.enter_context(daemon.connect("unix"))
                if number < TICKETS:
                    connection.get(image.url, {"Range": "bytes=0-9"})  # the image is open
                connection.sock.setblocking(False)
                transfers.append(Transfer(connection.sock, uploads))
                begins.append(request)
        began = time.monotonic()
        for transfer, request in zip(transfers, begins, strict=True):
            transfer.sock.sendall(request)
        move(transfers)
        soon = max(SOON, SOON_PART * (time.monotonic() - began))
        assert max(transfer.first for transfer in transfers) - began <= soon
