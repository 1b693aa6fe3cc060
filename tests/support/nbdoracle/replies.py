# SPDX-License-Identifier: Apache-2.0
"""Replies to requests, in each of the three forms that can be negotiated.

A reply is one or more chunks. For chunks with data, only the header is made here. The caller sends the data.
"""

from collections.abc import Sequence
from typing import Protocol

from imageio_daemon.nbdproto.constants import CHUNK, DONE, EXTENDED_CHUNK, SIMPLE_REPLY, Chunk, ErrorNumber
from imageio_daemon.nbdproto.messages import (
    EXTENDED,
    HOLE,
    OFFSET,
    SIMPLE,
    STRUCTURED,
)
from tests.support.nbd_payloads import pack_error, pack_extents, pack_hole
from tests.support.nbdoracle.limits import MAX_COMPACT_EXTENT

from .requests import Request


class Replies(Protocol):
    """Make the replies of one connection."""

    #: Whether a READ may be answered in several pieces, and holes without their zeros.
    chunks: bool

    def success(self, request: Request) -> bytes:
        """Return the whole reply to a request without data or extents."""
        ...

    def failure(self, request: Request, error: ErrorNumber, text: str) -> bytes:
        """Return the whole reply, or the last chunk of one, with the error and its text."""
        ...

    def data(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return the header for `length` bytes of data. Pass `done` for the last chunk."""
        ...

    def hole(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return a chunk for a range of zeros."""
        ...

    def status(self, request: Request, context_id: int, lengths: Sequence[int], statuses: Sequence[int]) -> bytes:
        """Return the whole reply to BLOCK_STATUS."""
        ...


class SimpleReplies:
    """Simple replies, without chunks and texts, for clients that have negotiated nothing else."""

    chunks = False

    def success(self, request: Request) -> bytes:
        """Return the reply."""
        return SIMPLE.pack(SIMPLE_REPLY, 0, request.cookie)

    def failure(self, request: Request, error: ErrorNumber, text: str) -> bytes:
        """Return the reply."""
        return SIMPLE.pack(SIMPLE_REPLY, error, request.cookie)

    def data(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return the header. The data is that of the whole request."""
        return SIMPLE.pack(SIMPLE_REPLY, 0, request.cookie)

    def hole(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Raise: there are no chunks."""
        raise NotImplementedError

    def status(self, request: Request, context_id: int, lengths: Sequence[int], statuses: Sequence[int]) -> bytes:
        """Raise: there are no chunks."""
        raise NotImplementedError


class StructuredReplies:
    """Chunks with 32-bit lengths. Success without data is a simple reply, because that is the shortest."""

    chunks = True

    def success(self, request: Request) -> bytes:
        """Return the reply. READ may not be answered by a simple one."""
        if request.is_read:
            return self._chunk(request, Chunk.NONE, 0, DONE)
        return SIMPLE.pack(SIMPLE_REPLY, 0, request.cookie)

    def failure(self, request: Request, error: ErrorNumber, text: str) -> bytes:
        """Return the last chunk."""
        payload = pack_error(error, text)
        return self._chunk(request, Chunk.ERROR, len(payload), DONE) + payload

    def data(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return the header."""
        return STRUCTURED.pack(CHUNK, DONE if done else 0, 1, request.cookie, OFFSET.size + length) + OFFSET.pack(
            offset
        )

    def hole(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return the chunk."""
        return self._chunk(request, Chunk.OFFSET_HOLE, HOLE.size, DONE if done else 0) + pack_hole(offset, length)

    def status(self, request: Request, context_id: int, lengths: Sequence[int], statuses: Sequence[int]) -> bytes:
        """Return the only chunk. An extent longer than the field ends the reply."""
        if max(lengths) > MAX_COMPACT_EXTENT:
            last = next(i for i, length in enumerate(lengths) if length > MAX_COMPACT_EXTENT)
            lengths, statuses = [*lengths[:last], MAX_COMPACT_EXTENT], statuses[: last + 1]
        payload = pack_extents(context_id, lengths, statuses, extended=False)
        return self._chunk(request, Chunk.BLOCK_STATUS, len(payload), DONE) + payload

    @staticmethod
    def _chunk(request: Request, kind: Chunk, length: int, flags: int) -> bytes:
        return STRUCTURED.pack(CHUNK, flags, kind, request.cookie, length)


class ExtendedReplies:
    """Chunks with 64-bit lengths, for everything."""

    chunks = True

    def success(self, request: Request) -> bytes:
        """Return the only chunk."""
        return self._chunk(request, Chunk.NONE, 0, DONE)

    def failure(self, request: Request, error: ErrorNumber, text: str) -> bytes:
        """Return the last chunk."""
        payload = pack_error(error, text)
        return self._chunk(request, Chunk.ERROR, len(payload), DONE) + payload

    def data(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return the header."""
        return self._chunk(request, Chunk.OFFSET_DATA, OFFSET.size + length, DONE if done else 0) + OFFSET.pack(offset)

    def hole(self, request: Request, offset: int, length: int, *, done: bool) -> bytes:
        """Return the chunk."""
        return self._chunk(request, Chunk.OFFSET_HOLE, HOLE.size, DONE if done else 0) + pack_hole(offset, length)

    def status(self, request: Request, context_id: int, lengths: Sequence[int], statuses: Sequence[int]) -> bytes:
        """Return the only chunk."""
        payload = pack_extents(context_id, lengths, statuses, extended=True)
        return self._chunk(request, Chunk.BLOCK_STATUS_EXT, len(payload), DONE) + payload

    @staticmethod
    def _chunk(request: Request, kind: Chunk, length: int, flags: int) -> bytes:
        return EXTENDED.pack(EXTENDED_CHUNK, flags, kind, request.cookie, request.offset, length)
