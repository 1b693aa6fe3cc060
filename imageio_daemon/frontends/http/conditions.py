# SPDX-License-Identifier: Apache-2.0
"""Entity tags (RFC 9110 8.8.3): an interrupted download goes on where it ended if the image has not changed."""

import hashlib
import secrets
from collections.abc import Mapping

from ...errors import Changed
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer

#: The name of this process: a client that was cut off sees whether what it wrote and did not flush can be lost.
INSTANCE = secrets.token_hex(8)


class Conditions:
    """What a request makes dependent on the image's state (RFC 9110 13.1.1, 13.1.5). Made before the image is read.

    Only tickets that do not write have tags, and only images of which it is certain what was written to them: by other
    tickets, for other programs that write to a file or device are not seen. Others have no tag, and a condition on one
    is not met. Raises Changed.
    """

    def __init__(self, fields: Mapping[str, str], transfer: Transfer, size: int) -> None:
        self._tag: str | None = None
        #: Whether there is a condition: its answer has the tag.
        self.asked = False
        #: Whether a Range is to be looked at; if not, the client wants all.
        self.range_counts = True
        if transfer.ticket.may(Access.WRITE):
            return
        backend = transfer.opened
        if backend is not None:
            self._tag = entity_tag(backend.info.identity, size, backend.generation)
        match, unchanged = fields.get("if-match"), fields.get("if-range")
        self.asked = match is not None or unchanged is not None
        if match is not None and match != "*" and self._tag not in _members(match):
            raise Changed("The image is not what it was, or nobody knows")
        if unchanged is not None:
            self.range_counts = unchanged == self._tag

    @property
    def headers(self) -> dict[str, str]:
        """Return the field that has the tag, if there is one."""
        return {} if self._tag is None else {"ETag": self._tag}


def entity_tag(identity: object, size: int, generation: int) -> str | None:
    """Return a strong tag of the bytes of an image, of which so many are served; None: nobody is sure of them.

    It names the image, its size, and the generation of writes through this server, which no other process knows. A
    write that begins later is of another generation, so the tag is never given to its bytes again.
    """
    if not generation or identity is None:
        return None
    named = f"{INSTANCE} {identity} {size} {generation}"
    return f'"{hashlib.sha256(named.encode()).hexdigest()[:32]}"'


def _members(text: str) -> list[str]:
    """Return the tags of a list. Ours have no comma; a weak one is equal to none (RFC 9110 8.8.3.2)."""
    return [member.strip(" \t") for member in text.split(",")]
