# SPDX-License-Identifier: Apache-2.0
"""`/images/{id}/checksum`: the digest of an image or a range of it, computed by the server."""

from collections.abc import Mapping

from aiohttp import web

from ....errors import InvalidRequest
from ....image.blockhash import BLOCK_ALIGNMENT, DEFAULT_ALGORITHM, DEFAULT_BLOCK, Total
from ....operations.checksum import Wanted, checksum
from ....operations.hashing import Hashing
from ....storage.lending import Buffers
from ....transfers.store import TransferStore
from ....transfers.ticket import Access
from ..checksums import ALGORITHMS, require_algorithm, require_block_size
from ..headers import parse_number
from ..messages import json_response
from ..request import attach, query_of
from ..routes import Resource, preflight
from .images import READ_METHODS


class Checksums:
    """Serve the checksums of images."""

    def __init__(self, store: TransferStore, buffers: Buffers, hashing: Hashing) -> None:
        self._store = store
        self._buffers = buffers
        self._hashing = hashing

    def resource(self) -> Resource:
        """Return the resource `/images/{}/checksum`."""
        return Resource({"OPTIONS": preflight(READ_METHODS), "GET": self.get}, READ_METHODS, READ_METHODS)

    def list_resource(self) -> Resource:
        """Return the resource `/images/{}/checksum/algorithms`."""
        return Resource({"OPTIONS": preflight(READ_METHODS), "GET": self.list_all}, READ_METHODS, READ_METHODS)

    async def get(self, request: web.Request) -> web.Response:
        """Answer GET with the checksum of the image, or of a range of it.

        The query has the algorithm and the block_size: bytes, a multiple of BLOCK_ALIGNMENT, from MIN_BLOCK to
        MAX_BLOCK; offset, a multiple of BLOCK_ALIGNMENT, by default 0; length, at least 1, by default to the end of the
        image. The answer has the range if the query has offset or length. Raises InvalidRequest, OutOfRange, Forbidden,
        TooManyConnections, Canceled, StorageError, Unavailable.
        """
        query = query_of(request)
        algorithm = query.get("algorithm", DEFAULT_ALGORITHM)
        require_algorithm(algorithm)
        block_size = parse_number(query.get("block_size", str(DEFAULT_BLOCK)), "block_size")
        require_block_size(block_size)
        offset, length = _range(query)
        transfer = attach(self._store, request, Access.READ)
        total = Total(algorithm)
        wanted = Wanted(algorithm, block_size, offset, length)
        length = await checksum(transfer, self._buffers, self._hashing, wanted, total)
        answer: dict[str, object] = {
            "algorithm": algorithm,
            "block_size": block_size,
            "checksum": total.hexdigest(),
        }
        if "offset" in query or "length" in query:
            answer |= {"offset": offset, "length": length}
        return json_response(answer)

    async def list_all(self, _: web.Request) -> web.Response:
        """Answer GET with the names of the algorithms. It needs no ticket."""
        return json_response({"algorithms": ALGORITHMS})


def _range(query: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the offset and the length that a query asks for; no length: to the end of the image."""
    offset = parse_number(query.get("offset", "0"), "offset")
    if offset % BLOCK_ALIGNMENT:
        raise InvalidRequest(f"Invalid offset: a multiple of {BLOCK_ALIGNMENT}")
    if "length" not in query:
        return offset, None
    length = parse_number(query["length"], "length")
    if length == 0:
        raise InvalidRequest("Invalid length: at least 1")
    return offset, length
