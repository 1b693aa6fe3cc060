# SPDX-License-Identifier: Apache-2.0
"""Ranges of local files that the kernel sends, without a copy through memory of the client."""

import os
import socket
from collections.abc import Callable
from typing import overload

from ..units import KiB

#: Bytes that are read and sent at a time where the kernel cannot send a file: about as many as a unix socket takes.
PIECE = 256 * KiB


class FilePart:
    """A range of an open file, used like bytes in memory: it has a length, single bytes and slices.

    Offset and length are in bytes. `failed` returns the exception to raise if the file cannot be read at an offset, or,
    with None in place of an error, if it ends there.
    """

    __slots__ = ("_failed", "_fd", "_length", "_offset")

    def __init__(self, fd: int, offset: int, length: int, failed: Callable[[int, OSError | None], Exception]) -> None:
        self._fd = fd
        self._offset = offset
        self._length = length
        self._failed = failed

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> "FilePart": ...
    def __getitem__(self, place: int | slice) -> "int | FilePart":
        if isinstance(place, int):
            return self[place : place + 1].read()[0]
        start, stop, _ = place.indices(self._length)
        return FilePart(self._fd, self._offset + start, max(stop - start, 0), self._failed)

    def read(self) -> bytes:
        """Return all bytes. Raises what `failed` returns."""
        data = b""
        while len(data) < self._length:
            offset = self._offset + len(data)
            try:
                more = os.pread(self._fd, self._length - len(data), offset)
            except OSError as e:
                raise self._failed(offset, e) from e
            if not more:
                raise self._failed(offset, None)
            data += more
        return data

    def send(self, sock: socket.socket) -> int:
        """Send some of the bytes to a socket without TLS that has room for data, and return their number.

        Raises what `failed` returns, and OSError for the socket.
        """
        try:
            count = os.sendfile(sock.fileno(), self._fd, self._offset, self._length)
        except OSError:  # of socket or file: this call tells which
            return sock.send(self[:PIECE].read())
        if count == 0:
            raise self._failed(self._offset, None)
        return count
