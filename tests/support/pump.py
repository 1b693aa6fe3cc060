# SPDX-License-Identifier: Apache-2.0
"""Clients that move bytes as fast as they may, and their rates."""

import bisect
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.daemon import Daemon
from tests.support.http_client import Connection, DisconnectedError, encode_request
from tests.support.images import Image, KiB

PIECE = 256 * KiB


class Pump:
    """During the block, upload or download an image again and again on one connection.

    The image has `size` bytes. `service` is tls or unix.
    """

    def __init__(self, daemon: Daemon, image: Image, size: int, *, uploads: bool, service: str = "unix") -> None:
        self._connection: Connection = daemon.connect(service)
        self._url = image.url
        self._size = size
        self._moved = 0
        self._began = time.monotonic()
        self._times, self._totals = [self._began], [0]
        self._stopped = False
        #: The status of the last answer, or None if the connection ended without one.
        self.status: int | None = None
        self.thread = threading.Thread(target=self._run, args=(self._upload if uploads else self._download,))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self.thread.join()
        self._connection.close()

    @property
    def total(self) -> int:
        """The bytes that were moved so far."""
        return self._moved

    def until(self, seconds: float) -> None:
        """Sleep until this number of seconds after the start."""
        time.sleep(max(0, self._began + seconds - time.monotonic()))

    def rate(self, start: float, end: float) -> float:
        """Wait until `end`, and return the bytes per second since `start`. Both are seconds since the pump began."""
        return (self._at(self._began + end) - self._at(self._began + start)) / (end - start)

    def _at(self, when: float) -> int:
        return self._totals[max(0, bisect.bisect_right(self._times, when) - 1)]

    def _run(self, move: Callable[[], None]) -> None:
        try:
            while not self._stopped:
                self.status = None
                move()
        except (DisconnectedError, OSError, ssl.SSLError):
            return

    def _note(self, count: int) -> None:
        self._moved += count
        self._times.append(time.monotonic())
        self._totals.append(self._moved)

    def _upload(self) -> None:
        data = bytes(PIECE)
        self._connection.send(encode_request("PUT", f"{self._url}?flush=n", {"Content-Length": str(self._size)}))
        left = self._size
        while left and not self._stopped:
            count = self._connection.sock.send(data[: min(PIECE, left)])
            left -= count
            self._note(count)
        if left == 0:
            self.status = self._connection.receive(to="PUT").status

    def _download(self) -> None:
        self._connection.send(encode_request("GET", self._url))
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._receive(KiB)
        self.status = int(head.split()[1])
        left = self._size - len(head.partition(b"\r\n\r\n")[2])
        while left and not self._stopped:
            count = len(self._receive(min(PIECE, left)))
            left -= count
            self._note(count)

    def _receive(self, most: int) -> bytes:
        data = self._connection.sock.recv(most)
        if not data:
            raise DisconnectedError(data)
        return data
