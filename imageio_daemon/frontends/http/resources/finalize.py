# SPDX-License-Identifier: Apache-2.0
"""PATCH of an image with the op "finalize", and `/images/{id}/finalize`: verify that an image has the sent bytes."""

from typing import Any

from aiohttp import web

from ....errors import InvalidRequest
from ....image.blockhash import DEFAULT_ALGORITHM, DEFAULT_BLOCK, Total, new_hash
from ....operations.finalize import ExpectedImage, Finalizer, Verification
from ....transfers.store import TransferStore
from ....transfers.ticket import Access
from ....transfers.transfer import FINALIZED
from .. import errors
from ..request import attach, query_of
from ..responses import json_response
from .checksum import require_algorithm, require_block_size


class Finalize:
    """Serve the finalize of images."""

    def __init__(self, store: TransferStore, finalizer: Finalizer) -> None:
        self._store = store
        self._finalizer = finalizer

    async def patch(self, request: web.Request, document: dict[str, Any]) -> web.Response:
        """Verify an image, and make its ticket read-only. `document` is the JSON of a PATCH with the op finalize.

        The answer is 200, 409 with the blocks that differ, or 202 if it takes long. Raises InvalidRequest, InUse,
        Forbidden, TooManyConnections, Canceled, Unavailable, StorageError.
        """
        expected = parse_finalize(document)
        transfer = attach(self._store, request, Access.READ)
        transfer.ticket.require(Access.WRITE)
        report = await self._finalizer.finalize(transfer, expected)
        if report is None:
            verification = self._finalizer.last(transfer)
            return json_response({} if verification is None else _progress(verification), status=202)
        if "mismatch" in report:
            return json_response(report, {errors.CODE: errors.MISMATCH}, status=409)
        return json_response(report)

    async def get(self, request: web.Request) -> web.Response:
        """Answer GET with the state: open, verifying, mismatch, failed or finalized. Raises Forbidden."""
        query_of(request)
        transfer = attach(self._store, request, Access.READ)
        verification = self._finalizer.last(transfer)
        if verification is not None and not verification.report.done():  # kept_state may have an earlier report
            return json_response(_progress(verification))
        report = transfer.kept_state.get(FINALIZED)
        if report is not None:
            return json_response({"state": "finalized", **report})
        if verification is None:
            return json_response({"state": "open"})
        failure = verification.report.exception()
        if failure is None:
            return json_response({"state": "mismatch", **verification.report.result()})
        reason = {"reason": errors.text(failure), "code": errors.code(failure)}
        return json_response({"state": "failed", **verification.expected.shown, **reason})


def _progress(verification: Verification) -> dict[str, object]:
    progress = {"done": verification.done, "size": verification.size}
    return {"state": "verifying", **verification.expected.shown, **progress}


def parse_finalize(document: dict[str, Any]) -> ExpectedImage:
    """Return the expected image in the JSON document of a finalize. Raises InvalidRequest."""
    checksum = document.get("checksum")
    if not isinstance(checksum, dict):
        raise InvalidRequest("Invalid request: 'checksum' must be a JSON object")
    algorithm, block_size = checksum.get("algorithm", DEFAULT_ALGORITHM), checksum.get("block_size", DEFAULT_BLOCK)
    if not isinstance(algorithm, str) or type(block_size) is not int:
        raise InvalidRequest("Invalid request: 'algorithm' must be a text, 'block_size' a number")
    require_algorithm(algorithm)
    require_block_size(block_size)
    size = len(new_hash(algorithm).digest())
    whole = _digest(checksum.get("checksum"), size)
    listed = checksum.get("blocks", [])
    if not isinstance(listed, list):
        raise InvalidRequest("Invalid request: 'blocks' must be a list")
    blocks = tuple(_digest(block, size) for block in listed)
    if blocks:
        total = Total(algorithm)
        total.add(b"".join(blocks))
        if total.hexdigest() != whole.hex():
            raise InvalidRequest("Invalid request: 'checksum' is not that of 'blocks'")
    return ExpectedImage(algorithm, block_size, whole.hex(), blocks)


def _digest(text: object, size: int) -> bytes:
    try:
        digest = bytes.fromhex(text) if isinstance(text, str) and len(text) == 2 * size else b""
    except ValueError:
        digest = b""
    if len(digest) != size:
        raise InvalidRequest(f"Invalid request: a digest of this algorithm has {2 * size} hexadecimal digits")
    return digest
