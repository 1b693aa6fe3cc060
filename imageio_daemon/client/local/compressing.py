# SPDX-License-Identifier: Apache-2.0
"""Downloads into a compressed file: gz, xz, zstd, bz2."""

import bz2
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import LocalError
from .compressed import zstd
from .part_file import PartFile
from .target import StreamTarget

#: Threads of zstd, in addition to the one that writes.
ZSTD_THREADS = 2


class Encoder(Protocol):
    """The common interface of the standard library's compressors."""

    def compress(self, data: memoryview, /) -> bytes:
        """Return the bytes that are ready."""

    def flush(self) -> bytes:
        """Return the last bytes."""


def _zstd(size: int) -> Encoder:
    """Return an encoder that writes the size into the header, for readers, and a checksum, as the program zstd does."""
    encoder = zstd.ZstdCompressor(
        options={zstd.CompressionParameter.nb_workers: ZSTD_THREADS, zstd.CompressionParameter.checksum_flag: 1}
    )
    encoder.set_pledged_input_size(size)
    return encoder


#: Makers of an encoder for an image of a size in bytes, by the names of formats.COMPRESSIONS. The levels are the
#: programs' defaults.
ENCODERS: dict[str, Callable[[int], Encoder]] = {
    "gz": lambda _: zlib.compressobj(wbits=16 + zlib.MAX_WBITS),
    "xz": lambda _: lzma.LZMACompressor(),
    "zstd": _zstd,
    "bz2": lambda _: bz2.BZ2Compressor(),
}


class _Writer:
    """A stream that compresses the bytes that are written to it."""

    def __init__(self, file: BinaryIO, encoder: Encoder) -> None:
        self._file = file
        self._encoder = encoder

    def write(self, data: memoryview) -> int:
        self._put(self._encoder.compress(data))
        return len(data)

    def flush(self) -> None:
        """Write the end of the compressed stream."""
        self._put(self._encoder.flush())

    def _put(self, packed: bytes) -> None:
        rest = memoryview(packed)
        while rest:
            rest = rest[self._file.write(rest) :]


class CompressedFile(StreamTarget):
    """A new file with the compressed image, called NAME.part until it is complete. `kind` is one of ENCODERS."""

    def __init__(self, path: Path, kind: str) -> None:
        self._part = PartFile(path)
        self._kind = kind
        try:
            self._file = self._part.path.open("r+b", buffering=0)
        except OSError as e:
            self._part.remove()
            raise LocalError(f"can't write {self._part.path}: {e.strerror}") from e
        super().__init__(self._file)

    def start(self, size: int) -> None:
        """Begin the compressed stream."""
        self._stream = _Writer(self._file, ENCODERS[self._kind](size))

    def finish(self) -> None:
        """End the compressed stream, and rename the file."""
        super().finish()
        self._close()
        self._part.publish()

    def abandon(self) -> None:
        """Remove the file."""
        try:
            self._close()
        finally:
            self._part.remove()

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as e:  # some file systems tell only now that there is no room
            raise LocalError(f"can't write {self._part.path}: {e.strerror}") from e
