# SPDX-License-Identifier: Apache-2.0
"""A request of the client and its result. The reply to a READ must have each byte exactly once."""

from ...image.ranges import RangeSet
from ..constants import MAX_PIECES, Command, CommandFlag, ErrorNumber
from .negotiation import ServerViolation

# A plain number, because looking up an enumeration's member takes a tenth of the time of a chunk.
_READ = int(Command.READ)
_ERRORS = frozenset(ErrorNumber)


class ClientRequest:
    """One request. `offset` and `length` are in bytes. `view` is memory for the `length` bytes of a READ.

    After the reply, `error` is an ErrorNumber or 0 for success, `text` is the server's message, and `statuses` has the
    payloads of the reply to BLOCK_STATUS, by id of the context.
    """

    __slots__ = ("_pieces", "command", "cookie", "error", "flags", "length", "offset", "statuses", "text", "view")

    def __init__(
        self, command: Command, offset: int = 0, length: int = 0, flags: int = 0, view: memoryview | None = None
    ) -> None:
        self.command = command
        self.offset = offset
        self.length = length
        self.flags = flags
        self.view = view
        self.cookie = 0
        self.error = 0
        self.text = ""
        self.statuses: dict[int, bytes] = {}
        self._pieces: RangeSet | None = None

    def __repr__(self) -> str:
        return f"<ClientRequest {self.command.name} {self.offset}+{self.length}>"

    def fail(self, error: int, text: str = "") -> None:
        """Set the error, unless there is one. Unknown numbers become EINVAL (proto.md, "Error values")."""
        known = error in _ERRORS and (error != ErrorNumber.ENOTSUP or self.flags & CommandFlag.FAST_ZERO)
        if not self.error:
            self.error, self.text = (error if known else ErrorNumber.EINVAL), text

    def place(self, offset: int, length: int) -> memoryview:
        """Return the memory for a range of the image. Raises ServerViolation if the reply may have no data there."""
        start = offset - self.offset
        if self.command != _READ or self.view is None:
            raise ServerViolation(f"data in reply to {self.command.name}")
        if not length or start < 0 or start + length > self.length:
            raise ServerViolation("data outside of what was asked for")
        if self._pieces is None:
            self._pieces = RangeSet(MAX_PIECES)
        before = self._pieces.size()
        self._pieces.add(offset, offset + length)
        # Above MAX_PIECES the set joins ranges across gaps, so that it grows by more than `length`.
        if self._pieces.size() != before + length:
            raise ServerViolation("data that was there before, or in too many pieces")
        return self.view[start : start + length]

    def check_complete(self) -> None:
        """Raise ServerViolation if a reply without error does not have all data."""
        if self.error or self.command != Command.READ:
            return
        if self._pieces is None or self._pieces.size() != self.length:
            raise ServerViolation("a reply without all data")
