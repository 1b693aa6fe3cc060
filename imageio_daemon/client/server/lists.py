# SPDX-License-Identifier: Apache-2.0
"""Lists from a server about an image, extents and digests of blocks, and checksums (docs/images-api.md)."""

import urllib.parse
from collections.abc import Iterator
from typing import Any

from ...image.block_list import Block, BlockListHead, ListReader
from ...image.extents import Extent
from ...image.extents_json import ExtentReader
from ..errors import ServerFailed
from .client_connection import WORK_TIMEOUT, ClientConnection

#: Most extents of an image, in 36 MiB of memory.
MAX_EXTENTS = 4 * 10**6


def extents(connection: ClientConnection, path: str, size: int, context: str) -> Iterator[Extent]:
    """Ask for the extents of a whole image of `size` bytes, and yield them. Raises as ClientConnection.stream()."""
    peer, count = connection.endpoint.peer, 0
    reader = ExtentReader(size, context, ServerFailed(f"{peer} sent extents that are not those of {size} bytes"))
    query = "" if context == "zero" else f"?context={context}"
    for data in connection.stream(f"{path}/extents{query}", timeout=WORK_TIMEOUT):
        for extent in reader.feed(data):
            count += 1
            if count > MAX_EXTENTS:
                raise ServerFailed(f"{peer} sent more than {MAX_EXTENTS} extents")
            yield extent
    reader.end()


def blocks(connection: ClientConnection, path: str, wanted: BlockListHead, length: int) -> list[Block]:
    """Ask for the digests of the blocks in a part of `length` bytes. Raises as ClientConnection.stream()."""
    peer = connection.endpoint.peer
    query = {"blocks": wanted.block_size, "algorithm": wanted.algorithm, "offset": wanted.offset, "length": length}
    reader = ListReader(ServerFailed(f"{peer} sent a malformed list of digests"), length)
    pieces = connection.stream(f"{path}/checksum?{urllib.parse.urlencode(query)}", timeout=WORK_TIMEOUT)
    found = [block for data in pieces for block in reader.feed(data)]
    reader.end()
    if (reader.head, reader.length) != (wanted, length):
        raise ServerFailed(f"{peer} sent the digests of another part than asked for")
    return found


def checked(answer: object, part: tuple[int, int] | None, peer: str) -> dict[str, Any]:
    """Return the answer if it is the checksum of the part, or of the whole image. Raises ServerFailed if not."""
    if not isinstance(answer, dict) or not isinstance(answer.get("checksum"), str):
        raise ServerFailed(f"{peer} sent a malformed checksum")
    if part is not None and (answer.get("offset"), answer.get("length")) != part:
        raise ServerFailed(f"{peer} sent the checksum of another part than asked for")
    return answer
