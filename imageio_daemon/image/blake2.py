# SPDX-License-Identifier: Apache-2.0
"""BLAKE2b (RFC 7693) of one message, in C of our own: hashlib refuses BLAKE2b on hosts in FIPS mode.

Here it only hashes data and names, and protects nothing, so FIPS 140 does not apply.
"""

from ioutil_ext import ffi, lib

CHUNK: int = lib.IOU_HASH_CHUNK
#: Bytes of the digests of short_hash().
SHORT = 16


class Blake2b:
    """A hash object like those of hashlib, for digests of `size` bytes. Raises ValueError unless `size` is 1 to 32.

    The C code can hash four messages at once (ioutil_ext/content/blake2b.c), and hashes only one here. With AVX that is
    as fast as hashlib: 0.66 GB/s, and hashlib has 0.58 (AMD EPYC). Without AVX it has a third of hashlib's speed. So
    new_hash() prefers hashlib.
    """

    def __init__(self, size: int) -> None:
        self._state = ffi.new("iou_blake2b *")
        if lib.iou_blake2b_begin(self._state, size):
            raise ValueError(f"a digest of {size} bytes")
        self.digest_size = size
        #: At most a chunk. C has to know which chunk is the last, so a chunk waits here until the next byte comes.
        self._rest = b""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""
        view = memoryview(data).cast("B")
        head = CHUNK - len(self._rest)
        if len(view) > head:
            _add(self._state, self._rest + view[:head])
            end = head + (len(view) - head - 1) // CHUNK * CHUNK
            if end > head:
                _add(self._state, view[head:end])
            self._rest, view = b"", view[end:]
        self._rest += view

    def digest(self) -> bytes:
        """Return the raw digest."""
        ended = ffi.new("iou_blake2b *", self._state[0])
        _add(ended, self._rest, last=True)
        digests = bytearray(lib.IOU_HASH_LANES * lib.IOU_HASH_DIGEST)
        lib.iou_blake2b_digests(ended, ffi.from_buffer(digests))
        return bytes(digests[: self.digest_size])

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal."""
        return self.digest().hex()


def _add(state: object, data: bytes | memoryview, *, last: bool = False) -> None:
    pieces = ffi.new("void *[]", [ffi.from_buffer(data), *[ffi.NULL] * (lib.IOU_HASH_LANES - 1)])
    if lib.iou_blake2b_add(state, pieces, len(data), last):
        raise ValueError(f"{len(data)} bytes are not whole chunks")


def short_hash(text: str) -> str:
    """Return 32 hexadecimal digits that stand for a text, for names of files. They do not reveal it."""
    state = Blake2b(SHORT)
    state.update(text.encode())
    return state.hexdigest()
