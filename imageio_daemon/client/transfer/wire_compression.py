# SPDX-License-Identifier: Apache-2.0
"""Compression of data on its way to a server that decodes zstd (docs/images-api.md, "Compressed").

Whether it is faster depends on the data, on the link, on both hosts and on what else they do. So the time of requests
is measured, with and without compression.
"""

import enum
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...units import GiB, MiB
from ..server.data import Encoded, Piece
from ..server.session import ClientSession

#: The name of the coding (RFC 9659).
ENCODING = "zstd"
#: The level of compression. One thread, on a busy machine, compressed the data of a Linux /usr without holes at 530
#: MB/s with a ratio of 2.4 at level -1; 580 MB/s and 2.7 at 1; 410 MB/s and 2.9 at 2; 270 MB/s and 3.0 at 3.
LEVEL = 1
#: Data that compresses by less than this ratio is sent as it is.
LEAST_RATIO = 1.1
#: Most part of the time of sending that is spent on useless compression. After a piece that did not become smaller, or
#: was sent no faster, as many pieces are not compressed as this needs. On a link of 1 Gbit/s, every other piece is
#: tried, which finds the files of a /usr that become smaller. Without this, 1.2 GiB sent in 1.3 s on one host took a
#: fifth more of the client's processor time.
IN_VAIN = 0.01
MOST_SKIPPED = 64
#: Compression has to make sending this many times as fast, because it costs processor time on both hosts.
LEAST_GAIN = 1.1
#: Pieces after which the other way is measured again. There are few at first, while pieces get longer and the window of
#: TCP opens. Their number doubles each time, up to TRY_EACH.
FIRST_TRY, TRY_EACH = 8, 64
#: Pieces in a row that are then sent in the other way, one for each connection. A single one among pieces sent
#: otherwise would have more or less of the link and of the processors than usual.
TRIED = 4
#: Most bytes of a piece that is tried. Longer ones that wait already are sent in the better way. When they were tried,
#: too, 1.2 GiB of files of a /usr over TLS on one host took a quarter more of the client's processor time.
TRIED_LENGTH = 1 * MiB
UNLIMITED = 1 * GiB
#: Seconds without compression after a server had no memory to decode. The server has less for a client that it has cut
#: off, for the same time.
REFUSED_FOR = 10.0
#: Pieces that are measured in each way at first.
FIRST = 2
#: The weight of a new measurement in the average.
WEIGHT = 0.5


class Compression(enum.StrEnum):
    """Whether data is compressed on the wire: where that is faster, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass
class _Way:
    """How fast data is sent in one way, in bytes per second of one connection, and the number of measured pieces."""

    rate: float = 0.0
    pieces: int = 0

    def measured(self, rate: float) -> None:
        self.rate = self.rate + WEIGHT * (rate - self.rate) if self.pieces else rate
        self.pieces += 1


class Choice:
    """Decide for each piece of an upload whether to compress it, for all connections together. Thread-safe."""

    def __init__(self, mode: Compression) -> None:
        self._mode = mode
        self._lock = threading.Lock()
        self._plain, self._compressed = _Way(), _Way()
        self._skip = 0
        self._since_try = 0
        self._try_each = FIRST_TRY
        self._left_to_try = 0
        self._tried = False  # the way that is tried: with compression or not
        self._refused_until = 0.0

    @property
    def most(self) -> int:
        """Return how many bytes the next pieces that are sent together may have."""
        with self._lock:
            return TRIED_LENGTH if self._is_trying and not self._skip else UNLIMITED

    def compresses(self, length: int) -> bool:
        """Decide whether to compress the next pieces, of `length` bytes."""
        if time.monotonic() < self._refused_until:
            return False
        if self._mode is not Compression.AUTO:
            return self._mode is Compression.ALWAYS
        with self._lock:
            if self._skip:
                self._skip -= 1
                return False
            if self._is_trying and length <= TRIED_LENGTH:
                return self._try()
            self._since_try += 1
            return self._is_better

    @property
    def _is_better(self) -> bool:
        """Return whether compression is the better way."""
        return self._compressed.rate >= LEAST_GAIN * self._plain.rate

    @property
    def _is_first(self) -> bool:
        return min(self._plain.pieces, self._compressed.pieces) < FIRST

    @property
    def _is_trying(self) -> bool:
        is_due = self._left_to_try or self._since_try + 1 >= self._try_each
        return self._mode is Compression.AUTO and bool(self._is_first or is_due)

    def _try(self) -> bool:
        if self._is_first:
            return self._compressed.pieces < self._plain.pieces
        if self._left_to_try:
            self._left_to_try -= 1
        else:
            self._since_try, self._try_each = 0, min(2 * self._try_each, TRY_EACH)
            self._left_to_try, self._tried = TRIED - 1, not self._is_better
        return self._tried

    def sent(self, length: int, seconds: float, compressing: float | None = None) -> None:
        """Note how long pieces took. `compressing` is the part of their compression, or None if there was none."""
        with self._lock:
            if seconds > 0:
                (self._plain if compressing is None else self._compressed).measured(length / seconds)
            if compressing is not None and not self._is_better:
                self._skip_some(length, compressing)

    def refused(self) -> None:
        """Note that the server has no memory to decode now."""
        self._refused_until = time.monotonic() + REFUSED_FOR

    def in_vain(self, length: int, seconds: float) -> None:
        """Note that compressing pieces did not make them smaller, and how long it took."""
        with self._lock:
            self._skip_some(length, seconds)

    def _skip_some(self, length: int, seconds: float) -> None:
        # In AUTO mode the first piece is sent as it is, so the rate is known.
        self._skip = min(math.ceil(seconds * self._plain.rate / (IN_VAIN * length)), MOST_SKIPPED)


def choice_for(session: ClientSession, mode: Compression) -> Choice | None:
    """Return the choice of compression for data to a server, or None if it is never compressed."""
    if mode is Compression.NEVER or session.is_local or ENCODING not in session.abilities.encodings:
        return None
    return Choice(mode)


class Compressor:
    """The compressor of one connection, used by one thread."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._seconds: float | None = None  # the time of the last compression, or None if there was none
        from ..local.compressed import zstd  # noqa: PLC0415 - most transfers start earlier without it

        self._encoder = zstd.ZstdCompressor(level=LEVEL)

    def compress(self, pieces: Sequence[Piece]) -> list[Piece | Encoded] | None:
        """Return the pieces, each as a frame of zstd, or None if they should be sent as they are."""
        self._seconds = None
        length = sum(len(piece.data) for piece in pieces)
        if not self.choice.compresses(length):
            return None
        started = time.monotonic()
        frames = [self._frame(piece.data) for piece in pieces]
        seconds = time.monotonic() - started
        if sum(map(len, frames)) * LEAST_RATIO > length:
            self.choice.in_vain(length, seconds)
            return None
        self._seconds = seconds
        return [
            Encoded(piece, ENCODING, frame) if len(frame) < len(piece.data) else piece
            for piece, frame in zip(pieces, frames, strict=True)
        ]

    def sent(self, length: int, seconds: float) -> None:
        """Note how long the pieces of the last compress() took, with their compression."""
        self.choice.sent(length, seconds, self._seconds)

    def refused(self) -> None:
        """Note that the server did not decode what the last compress() returned."""
        self.choice.refused()

    def _frame(self, data: memoryview) -> bytes:
        self._encoder.set_pledged_input_size(len(data))
        return self._encoder.compress(data, self._encoder.FLUSH_FRAME)
