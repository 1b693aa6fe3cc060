# SPDX-License-Identifier: Apache-2.0
"""Compressed uploads whose clients do not go on: others keep half of their speed, compressed or not."""

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from imageio_daemon.client.local.compressed import zstd
from tests.support.daemon import Certificates, Daemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, KiB, MakeImage, MiB, make_image, pattern

pytestmark = pytest.mark.alone  # rates are compared

SIZE = 16 * MiB
#: What a client sends to tell how fast it is, and how often.
PIECE = 1 * MiB
PIECES = 24
ROUNDS = 5
#: Seconds between the bytes of a client that sends slowly.
TRICKLE = 0.5
#: Each hog has a ticket of its own, and a frame with a window of 2 to the power of this.
WINDOWS = (23, 23, 23, 23, 23, 23, 23, 23, 22, 22, 20, 20)
LARGE, SMALL = 23, 20


def _frame(content: bytes, window: int) -> bytes:
    """Return a frame that does not tell how much it has, so its window counts."""
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: window,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    encoder = zstd.ZstdCompressor(options=options)
    return encoder.compress(content) + encoder.flush()


CONTENT = pattern(PIECE // 2, seed=1) + b"the same again. " * (PIECE // 32)
FRAMES = {window: _frame(CONTENT, window) for window in (*WINDOWS, LARGE, SMALL)}


def _head(image: Image, length: int, body: int) -> bytes:
    fields = {
        "Content-Encoding": "zstd",
        "Content-Range": f"bytes 0-{length - 1}/*",
        "Content-Length": str(body),
    }
    return encode_request("PUT", f"{image.url}?flush=n", fields)


class Hog:
    """A client that begins a frame and goes on with it slowly or not at all. It begins anew when it is cut off."""

    def __init__(self, daemon: Daemon, image: Image, window: int, kind: "Kind") -> None:
        self._daemon, self._image = daemon, image
        self._frame, self._kind = FRAMES[window], kind
        self._connection: Connection | None = None
        self._left = b""

    def go_on(self) -> None:
        """Send some bytes, without waiting."""
        if self._connection is None:
            self._connection = self._daemon.connect("unix")
            head = encode_request("GET", self._image.url, {"Range": "bytes=0-0"})  # then C has the connection
            head += _head(self._image, PIECE, len(self._frame))
            self._connection.send(head)
            self._connection.sock.setblocking(False)
            self._left = self._frame[: self._kind.end]
            self._send(self._kind.first)
        self._send(self._kind.step)
        with contextlib.suppress(BlockingIOError):
            while self._connection.sock.recv(64 * KiB):
                pass
            self.close()

    def _send(self, most: int) -> None:
        if self._connection is not None and self._left:
            with contextlib.suppress(BlockingIOError):
                self._left = self._left[self._connection.sock.send(self._left[:most]) :]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Kind(NamedTuple):
    """How a hog sends its frame: the first bytes at once, `step` bytes each time, and nothing from `end` on."""

    first: int
    step: int
    end: int


KINDS = {"windows": Kind(40, 5, -1), "frames without end": Kind(PIECE, PIECE, -2)}


@contextmanager
def _hogs(daemon: Daemon, make: MakeImage, kind: Kind) -> Iterator[None]:
    hogs = [Hog(daemon, make(size=SIZE, inactivity_timeout=60), window, kind) for window in WINDOWS]
    ends = threading.Event()

    def go_on() -> None:
        while not ends.wait(TRICKLE):
            for hog in hogs:
                try:
                    hog.go_on()
                except OSError:
                    hog.close()

    for hog in hogs:
        hog.go_on()
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        for hog in hogs:
            hog.close()


def _upload(daemon: Daemon, image: Image, body: bytes, fields: dict[str, str]) -> None:
    with daemon.connect("unix") as client:
        for at in range(PIECES):
            offset = at % (SIZE // PIECE) * PIECE
            told = fields | {"Content-Range": f"bytes {offset}-{offset + PIECE - 1}/*"}
            assert client.put(f"{image.url}?flush=n", body, told).status == 200


def _seconds(daemon: Daemon, image: Image, body: bytes, fields: dict[str, str]) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        _upload(daemon, image, body, fields)
        took.append(time.monotonic() - began)
    return statistics.median(took)


@pytest.mark.parametrize("kind", KINDS)
def test_others_keep_half_of_their_speed(certificates: Certificates, tmp_path: Path, kind: str) -> None:
    uploads: list[tuple[bytes, dict[str, str]]] = [
        (CONTENT, {}),
        (FRAMES[SMALL], {"Content-Encoding": "zstd"}),
        (FRAMES[LARGE], {"Content-Encoding": "zstd"}),
    ]
    with Daemon(certificates) as daemon:
        make = make_image(daemon, tmp_path)
        others = make(size=SIZE, inactivity_timeout=5)
        before = [_seconds(daemon, others, *upload) for upload in uploads]
        with _hogs(daemon, make, KINDS[kind]):
            beside = [_seconds(daemon, others, *upload) for upload in uploads]
        after = [_seconds(daemon, others, *upload) for upload in uploads]
        for took, one, other in zip(beside, before, after, strict=True):
            assert took <= 2 * max(one, other)  # others use the machine, too
