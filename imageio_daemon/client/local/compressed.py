# SPDX-License-Identifier: Apache-2.0
"""Decompression while reading: gz, xz, zstd, bz2, each as one stream or several that follow each other."""

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ...units import KiB, MiB, TiB
from ..errors import LocalError
from .stream import Reader

if sys.version_info >= (3, 14):
    from compression import zstd as zstd  # noqa: PLC0414 - for sizes, too
else:
    from backports import zstd as zstd  # noqa: PLC0414

#: Bytes of compressed data that are read at a time.
INPUT = 128 * KiB
#: Most bytes that one step decompresses, however much the input expands.
STEP = 4 * MiB
#: Most memory that a stream may ask for. `xz -9` needs 65 MiB; `zstd --long` has a window of 128 MiB, whose logarithm
#: is 27.
XZ_MEMORY = 256 * MiB
ZSTD_WINDOW = 27
#: The largest image whose size is found by decompressing it: that of vhdx, 64 TiB. For larger ones, the user has to say
#: the size.
MAX_COUNTED = 64 * TiB


class Decoder(Protocol):
    """The common interface of the standard library's decompressors."""

    @property
    def eof(self) -> bool:
        """Return whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Return whether the decoder needs more input."""

    @property
    def unused_data(self) -> bytes:
        """Return the bytes after the end of the stream."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return at most max_length bytes."""


class _Gzip:
    """zlib as a Decoder."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: with the header of gzip
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        done = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        # If max_length has stopped it, there may be more without any input.
        self.needs_input = len(done) < max_length and not self._zlib.unconsumed_tail
        return done


DECODERS: dict[str, Callable[[], Decoder]] = {
    "gz": _Gzip,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, XZ_MEMORY),
    "zstd": partial(zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW}),
    "bz2": bz2.BZ2Decompressor,
}


class Decompressed:
    """The decompressed bytes of a reader. `kind` is one of DECODERS, `name` the input's in messages."""

    def __init__(self, reader: Reader, kind: str, name: str) -> None:
        self._reader = reader
        self._new = DECODERS[kind]
        self._decoder = self._new()
        self._kind = kind
        self._name = name
        self._rest = b""  # input that the decoder has not got yet

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises LocalError, Stopped."""
        while not self._decoder.eof or self._begin_next():
            data = b""
            if self._decoder.needs_input and not (data := self._take()):
                raise LocalError(f"{self._name} ends in the middle of its {self._kind} data")
            try:
                done = self._decoder.decompress(data, min(size, STEP))
            except (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError) as e:
                raise LocalError(f"can't decompress {self._name} as {self._kind}: {e}") from e
            if done:
                return done
        return b""

    def _take(self) -> bytes:
        data, self._rest = self._rest, b""
        return data or self._reader.read(INPUT)

    def _begin_next(self) -> bool:
        """Begin the next stream, and return whether there is one. Zeros may stand between streams and at the end."""
        rest = self._decoder.unused_data.lstrip(b"\0")
        while not rest:
            data = self._take()
            if not data:
                return False
            rest = data.lstrip(b"\0")
        self._rest = rest
        self._decoder = self._new()
        return True


def count(reader: Reader, name: str) -> int:
    """Return how many bytes are left in a reader. Raises LocalError."""
    total = 0
    while data := reader.read(STEP):
        total += len(data)
        if total > MAX_COUNTED:
            raise LocalError(f"{name} decompresses to more than {MAX_COUNTED} bytes: say --size if it is an image")
    return total
