# SPDX-License-Identifier: Apache-2.0
"""C's parser of an NBD server's replies, which tests can feed any bytes."""

import ctypes
import functools
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

from imageio_daemon.nbdproto.client_negotiation import ServerViolation
from imageio_daemon.nbdproto.constants import Command

_TREE = Path(__file__).resolve().parents[2]
_NAMES = ("request", "status", "replies", "chunks", "payloads")
_SOURCES = (
    "tests/ioutil/nbd_replies.c",
    *(f"ioutil_ext/nbd_client/{name}.c" for name in _NAMES),
    "ioutil_ext/durable/ranges.c",
    "ioutil_ext/durable/blocks.c",
)


class _Extent(ctypes.Structure):
    _fields_ = (("end", ctypes.c_uint64), ("flags", ctypes.c_uint64))


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as directory:
        library = f"{directory}/replies.so"
        sources = [str(_TREE / name) for name in _SOURCES]
        command = ["cc", "-O2", "-std=gnu11", "-shared", "-fPIC", f"-I{_TREE}/ioutil_ext", *sources, "-o", library]
        subprocess.check_call(command)
        made = ctypes.CDLL(library)
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    made.client_new.restype = pointer
    made.client_feed.restype = ctypes.c_char_p
    made.client_extents.restype = ctypes.c_int64
    made.client_free.argtypes = [pointer]
    made.client_begin.argtypes = [pointer, ctypes.c_uint16, ctypes.c_uint16, number, number, pointer, ctypes.c_uint32]
    made.client_begin.argtypes += [ctypes.c_char_p, pointer]
    made.client_feed.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    made.client_ended.argtypes = [pointer, ctypes.c_uint32]
    made.client_error.argtypes = [pointer, ctypes.c_uint32, ctypes.c_char_p]
    made.client_extents.argtypes = [pointer, ctypes.c_uint32, number, number, pointer, number]
    return made


class Request:
    """A request. `memory` is for the data of a READ."""

    def __init__(
        self, command: Command, offset: int = 0, length: int = 0, flags: int = 0, memory: bytearray | None = None
    ) -> None:
        self.command = command
        self.offset = offset
        self.length = length
        self.flags = flags
        self.memory = memory
        self.cookie = self.number = 0


class Replies:
    """The requests of one connection, and the parser of its replies. `contexts` is their number; ids begin with 1."""

    def __init__(self, *, structured: bool, extended: bool, contexts: int = 0) -> None:
        self._client = _library().client_new(structured, extended, contexts)
        self._requests: dict[int, Request] = {}

    def __del__(self) -> None:
        _library().client_free(self._client)

    def begin(self, request: Request, *, guard: int = 0, most: int = 1000) -> bytes:
        """Add a request and return its header. Its memory has `guard` bytes before and after the bytes for the data."""
        memory = None
        if request.memory is not None:
            memory = ctypes.addressof((ctypes.c_char * len(request.memory)).from_buffer(request.memory)) + guard
        header, size = ctypes.create_string_buffer(32), ctypes.c_uint32()
        numbers = (int(request.command), int(request.flags), request.offset, request.length)
        cookie = _library().client_begin(self._client, *numbers, memory, most, header, ctypes.byref(size))
        request.cookie = request.number = cookie
        self._requests[cookie] = request
        return header.raw[: size.value]

    def feed(self, data: bytes, step: int = 1 << 30) -> None:
        """Let the parser receive bytes, at most `step` at once. Raises ServerViolation."""
        violation = _library().client_feed(self._client, data, len(data), step)
        if violation is not None:
            raise ServerViolation(violation.decode())

    @property
    def ended(self) -> list[Request]:
        """Return the requests whose replies are complete, in order."""
        found, number = [], 0
        while cookie := _library().client_ended(self._client, number):
            found.append(self._requests[cookie])
            number += 1
        return found

    def error(self, request: Request) -> tuple[int, str]:
        """Return the error of a reply and its text. The error is 0 if there is none."""
        text = ctypes.create_string_buffer(256)
        return _library().client_error(self._client, request.number, text), text.value.decode()

    def extents(self, request: Request, start: int, end: int, most: int = 1000) -> list[tuple[int, int, int]]:
        """Return start, length and flags of the extents. Raises ValueError if a context has none for the range."""
        extents = (_Extent * most)()
        count = _library().client_extents(self._client, request.number, start, end, extents, most)
        if count < 0:
            raise ValueError("nothing was told")
        bounds = [start, *(extent.end for extent in extents[:count])]
        return [(at, stop - at, extent.flags) for (at, stop), extent in zip(pairwise(bounds), extents, strict=False)]
