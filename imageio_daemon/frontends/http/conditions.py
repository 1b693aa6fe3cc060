# SPDX-License-Identifier: Apache-2.0
"""Entity tags (RFC 9110 8.8.3) and conditions on them, by which a client continues a download of an unchanged image."""

import hashlib
import secrets
from collections.abc import Mapping

from ...errors import Changed
from ...storage.packed import PackedDisk
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer

#: A name of this process. A client that connects again and finds another name may have lost writes without a flush.
INSTANCE = secrets.token_hex(8)


class Conditions:
    """The conditions If-Match, If-None-Match and If-Range of a read (RFC 9110 13.1), checked before the image is read.

    `fields` are the request's, by lower-case name. `size` is how many bytes of the image can be read. Raises Changed if
    If-Match does not name the image's tag. The order of the checks is that of RFC 9110 13.2.2.

    An image has a tag only for a ticket that cannot write, and only while the daemon knows all changes of its content.
    These are the writes of other tickets; the daemon does not see other programs that write to the file or device.
    Without a tag, If-Match fails unless it is `*`, If-None-Match matches nothing but `*`, and If-Range makes the answer
    the whole image. A ticket that can write ignores If-Match and If-Range.

    A `packed` file, which is made of the image, has a tag for any ticket, unless its own generation is 0.
    """

    def __init__(
        self, fields: Mapping[str, str], transfer: Transfer, size: int, packed: PackedDisk | None = None
    ) -> None:
        self._tag: str | None = None
        #: Whether the Range of the request counts. If not, the answer is the whole image.
        self.range_counts = True
        asked = fields.get("if-none-match", "")
        #: Whether If-None-Match names what the image is: the answer is 304, without its bytes.
        self.unmodified = asked == "*"
        if packed is None and transfer.ticket.may(Access.WRITE):
            return
        backend = transfer.opened
        if backend is not None and packed is not None:
            self._tag = entity_tag(backend.info.identity, size, packed.generation, packed.layout)
        elif backend is not None:
            self._tag = entity_tag(backend.info.identity, size, backend.generation)
        match, unchanged = fields.get("if-match"), fields.get("if-range")
        if match is not None and match != "*" and self._tag not in _members(match):
            raise Changed("If-Match does not hold: the image has changed, or may have changed")
        self.unmodified |= self._tag in [member.removeprefix("W/") for member in _members(asked)]
        if unchanged is not None:
            self.range_counts = unchanged == self._tag

    @property
    def headers(self) -> dict[str, str]:
        """Return the field ETag; empty if the image has no tag."""
        return {} if self._tag is None else {"ETag": self._tag}


def require_none(fields: Mapping[str, str]) -> None:
    """Check the condition of a change (RFC 9110 13.1.2). Raises Changed: it is wanted only if there is no image.

    Each ticket has an image. A ticket that can write has no tag, so tags in If-None-Match are those of others.
    """
    if fields.get("if-none-match") == "*":
        raise Changed("If-None-Match does not hold: the image exists")


def entity_tag(identity: object, size: int, generation: int, layout: str = "") -> str | None:
    """Return a strong entity tag (RFC 9110 8.8.1) for the content of an image, or None if changes may go unseen.

    `identity` is that of BackendInfo, or None if it is not known; `generation` that of the Backend, or 0; `size` the
    bytes that are served. The tag is a hash of them and of INSTANCE, because a generation means something in this
    process only. Each write makes a new generation, so a tag never stands for other content. `layout` is that of a file
    that is made of the image: programs that change the image unseen may change where it has data.
    """
    if not generation or identity is None:
        return None
    named = f"{INSTANCE} {identity} {size} {generation} {layout}"
    return f'"{hashlib.sha256(named.encode()).hexdigest()[:32]}"'


def _members(text: str) -> list[str]:
    """Return the tags of a condition. Those of this server are strong (RFC 9110 8.8.3), and have no comma."""
    return [member.strip(" \t") for member in text.split(",")]
