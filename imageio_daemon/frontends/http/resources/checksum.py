# SPDX-License-Identifier: Apache-2.0
"""`/images/{id}/checksum`: the digest of an image, of a range, or of each block, computed by the server."""

from collections.abc import Mapping

from aiohttp import web

from ....errors import InvalidRequest
from ....image.block_list import BlockListHead, ListWriter
from ....image.blockhash import (
    BLOCK_ALIGNMENT,
    DEFAULT_ALGORITHM,
    DEFAULT_BLOCK,
    MAX_BLOCK,
    MIN_BLOCK,
    Total,
    algorithms,
)
from ....operations.checksum import Blocks, WantedChecksum, checksum
from ....operations.hashing import Hashing
from ....storage.buffers import BufferPool
from ....transfers.store import TransferStore
from ....transfers.ticket import Access
from ....units import KiB
from ..headers import parse_number
from ..request import attach, query_of
from ..responses import AnswerStream, json_response

#: A JSON object on each line (jsonlines.org).
JSON_LINES = "application/jsonl"
#: Bytes of text that are collected before they are sent, for about 600 blocks. An image may have millions.
PIECE = 64 * KiB
#: Most characters of an unknown algorithm's name that the refusal repeats.
MAX_SHOWN = 40
#: The names of the algorithms that this daemon has.
ALGORITHMS = tuple(algorithms())


class Checksums:
    """Serve the checksums of images."""

    def __init__(self, store: TransferStore, buffers: BufferPool, hashing: Hashing) -> None:
        self._store = store
        self._buffers = buffers
        self._hashing = hashing

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer GET with the checksum of the image or of a range, or with the list of the digests of its blocks.

        The query may have `algorithm`; `block_size`, in bytes, a multiple of BLOCK_ALIGNMENT from MIN_BLOCK to
        MAX_BLOCK, or in its place `blocks`, which asks for the list; `offset`, a multiple of BLOCK_ALIGNMENT, by
        default 0; and `length`, at least 1, by default to the end of the image. The answer repeats the range if the
        query has `offset` or `length`. Raises InvalidRequest, OutOfRange, Forbidden, TooManyConnections, Canceled,
        StorageError, Unavailable, PeerGone. An error after the first piece of a list cuts the connection.
        """
        query = query_of(request)
        wanted = parse_checksum(query)
        transfer = attach(self._store, request, Access.READ)
        total = Total(wanted.algorithm)
        if asks_list(query):
            stream = AnswerStream(request, web.StreamResponse(headers={"Content-Type": JSON_LINES}))
            writer = _AnswerWriter(stream, wanted)
            length = await checksum(transfer, self._buffers, self._hashing, wanted, total, writer.add)
            await writer.end(length, total.hexdigest())
            return await stream.finish()
        length = await checksum(transfer, self._buffers, self._hashing, wanted, total)
        answer: dict[str, object] = {
            "algorithm": wanted.algorithm,
            "block_size": wanted.block_size,
            "checksum": total.hexdigest(),
        }
        if names_range(query):
            answer |= {"offset": wanted.offset, "length": length}
        return json_response(answer)


async def list_algorithms(_: web.Request) -> web.Response:
    """Answer GET with the names of the algorithms. It needs no ticket."""
    return json_response({"algorithms": ALGORITHMS})


def parse_checksum(query: Mapping[str, str]) -> WantedChecksum:
    """Return the checksum that a query asks for. Raises InvalidRequest."""
    algorithm = query.get("algorithm", DEFAULT_ALGORITHM)
    require_algorithm(algorithm)
    size_name = "blocks" if asks_list(query) else "block_size"
    block_size = parse_number(query.get(size_name, str(DEFAULT_BLOCK)), size_name)
    require_block_size(block_size, size_name)
    return WantedChecksum(algorithm, block_size, *_range(query))


def asks_list(query: Mapping[str, str]) -> bool:
    """Return whether a query asks for the list of the digests of blocks."""
    return "blocks" in query


def names_range(query: Mapping[str, str]) -> bool:
    """Return whether a query names a range, which the answer then repeats."""
    return "offset" in query or "length" in query


def _range(query: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the offset and the length in a query. The length is None for all up to the end of the image."""
    offset = parse_number(query.get("offset", "0"), "offset")
    if offset % BLOCK_ALIGNMENT:
        raise InvalidRequest(f"Invalid offset: a multiple of {BLOCK_ALIGNMENT}")
    if "length" not in query:
        return offset, None
    length = parse_number(query["length"], "length")
    if length == 0:
        raise InvalidRequest("Invalid length: at least 1")
    return offset, length


class _AnswerWriter:
    """Send the list of digests in pieces."""

    def __init__(self, stream: AnswerStream, wanted: WantedChecksum) -> None:
        self._stream = stream
        self._list = ListWriter(BlockListHead(wanted.algorithm, wanted.block_size, wanted.offset))

    async def add(self, blocks: Blocks) -> None:
        """Add blocks. Raises PeerGone."""
        if blocks.zero:
            self._list.zeros(blocks.number * blocks.length)
        else:
            self._list.block(blocks.length, blocks.digest)
        if self._list.size >= PIECE:
            await self._stream.write(self._list.take())

    async def end(self, length: int, checksum: str) -> None:
        """Add the end. Raises PeerGone."""
        self._list.end(length, checksum)
        await self._stream.write(self._list.take())


def require_algorithm(name: str) -> None:
    """Raise InvalidRequest, which names the known algorithms, if this one is unknown."""
    if name not in ALGORITHMS:
        raise InvalidRequest(f"Unknown algorithm {name[:MAX_SHOWN]!r}, known: {', '.join(ALGORITHMS)}")


def require_block_size(size: int, name: str = "block_size") -> None:
    """Raise InvalidRequest, which names the parameter, unless a checksum may have blocks of `size` bytes."""
    if not MIN_BLOCK <= size <= MAX_BLOCK or size % BLOCK_ALIGNMENT:
        raise InvalidRequest(f"Invalid {name}: a multiple of {BLOCK_ALIGNMENT}, from {MIN_BLOCK} to {MAX_BLOCK}")
