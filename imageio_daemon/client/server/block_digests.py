# SPDX-License-Identifier: Apache-2.0
"""The answers of servers with checksums, and with the digests of blocks (docs/images-api.md, "Compare")."""

import urllib.parse
from typing import Any

from ...image.block_list import Block, Head, ListReader
from ..errors import ServerFailed
from .connection import WORK_TIMEOUT, ClientConnection


def receive(connection: ClientConnection, path: str, wanted: Head, length: int) -> list[Block]:
    """Ask for the digests, and return them. length: of the part, in bytes. Raises as ClientConnection.stream()."""
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
    """Return an answer that is the checksum of a part, or of the whole image. Raises ServerFailed."""
    if not isinstance(answer, dict) or not isinstance(answer.get("checksum"), str):
        raise ServerFailed(f"{peer} sent a malformed checksum")
    if part is not None and (answer.get("offset"), answer.get("length")) != part:
        raise ServerFailed(f"{peer} sent the checksum of another part than asked for")
    return answer
