# SPDX-License-Identifier: Apache-2.0
"""The server's transmission phase: what is agreed on for it, what a request asks, and whether it may.

The header is parsed here; its payload is received by the caller, into memory of its own.
"""

from dataclasses import dataclass

from .constants import (
    BASE_ALLOCATION,
    EXTENDED_REQUEST,
    MAX_DRAINED_PAYLOAD,
    MAX_PAYLOAD,
    REQUEST,
    Command,
    CommandFlag,
    ErrorNumber,
    ExportFlag,
)
from .messages import COMPACT_REQUEST, EXTENDED_REQUEST_HEADER, BadMagic

#: Id of the only context. Any number would do.
ALLOCATION_ID = 1

_READ, _WRITE, _DISC, _FLUSH = int(Command.READ), int(Command.WRITE), int(Command.DISC), int(Command.FLUSH)
_PAYLOAD_LEN = CommandFlag.PAYLOAD_LEN

#: The flags that each command takes, besides FUA, which all take where it is offered.
_FLAGS = {
    Command.READ: CommandFlag.DF,
    Command.WRITE: CommandFlag.PAYLOAD_LEN,
    Command.DISC: 0,
    Command.FLUSH: 0,
    Command.TRIM: 0,
    Command.CACHE: 0,
    Command.WRITE_ZEROES: CommandFlag.NO_HOLE | CommandFlag.FAST_ZERO,
    Command.BLOCK_STATUS: CommandFlag.REQ_ONE,
}
_WRITING = frozenset((Command.WRITE, Command.TRIM, Command.WRITE_ZEROES))


@dataclass(frozen=True)
class Export:
    """What a client is told about an image. Sizes in bytes. can_flush: FLUSH and FUA are offered."""

    name: str
    size: int
    read_only: bool = False
    can_flush: bool = True
    description: str = ""

    def flags(self, *, chunks: bool) -> int:
        """Return the transmission flags. chunks: structured replies or extended headers are negotiated."""
        flags = ExportFlag.HAS_FLAGS | ExportFlag.CAN_MULTI_CONN | ExportFlag.SEND_CACHE
        if self.can_flush:
            flags |= ExportFlag.SEND_FLUSH | ExportFlag.SEND_FUA
        if self.read_only:
            flags |= ExportFlag.READ_ONLY
        else:
            flags |= ExportFlag.SEND_TRIM | ExportFlag.SEND_WRITE_ZEROES | ExportFlag.SEND_FAST_ZERO
        if chunks:
            flags |= ExportFlag.SEND_DF
        return flags


class Request:
    """One request. `payload`: bytes that follow the header. `error`: why it is refused, 0 when it is not."""

    __slots__ = ("command", "cookie", "error", "flags", "length", "offset", "payload", "text")

    def __init__(self, command: int, flags: int, cookie: int, offset: int, length: int) -> None:
        self.command = command
        self.flags = flags
        self.cookie = cookie
        self.offset = offset
        self.length = length
        self.payload = 0
        self.error: ErrorNumber | None = None
        self.text = ""

    def __repr__(self) -> str:
        return f"<Request {self.command} {self.offset}+{self.length} flags={self.flags:#x}>"

    @property
    def is_read(self) -> bool:
        """Tell whether it is a READ."""
        return self.command == _READ

    @property
    def fua(self) -> bool:
        """Tell whether what it does must be on stable storage at the end."""
        return bool(self.flags & CommandFlag.FUA)

    @property
    def must_end(self) -> bool:
        """Tell whether its payload is more than we read only to refuse it: answer, and close."""
        return self.payload > MAX_DRAINED_PAYLOAD

    def refuse(self, error: ErrorNumber, text: str) -> None:
        """Set the answer."""
        self.error = error
        self.text = text


@dataclass
class Agreement:
    """What is negotiated so far. `selected`: the name of the export that base:allocation was selected for."""

    structured: bool = False
    extended: bool = False
    selected: str | None = None

    @property
    def chunks(self) -> bool:
        """Tell whether replies come in chunks."""
        return self.structured or self.extended

    def transmission(self, export: Export) -> "Transmission":
        """Return what follows the negotiation."""
        return Transmission(
            export, structured=self.structured, extended=self.extended, allocation=self.selected == export.name
        )


class Transmission:
    """Check the requests of one connection against what was negotiated."""

    def __init__(self, export: Export, *, structured: bool, extended: bool, allocation: bool) -> None:
        self.export = export
        self.structured = structured
        self.extended = extended
        #: Whether BLOCK_STATUS may be asked about base:allocation.
        self.allocation = allocation
        self._form, self._magic = (
            (EXTENDED_REQUEST_HEADER, EXTENDED_REQUEST) if extended else (COMPACT_REQUEST, REQUEST)
        )
        self.header_size = self._form.size
        self._size = export.size
        self._read_only = export.read_only
        self._any_flags = CommandFlag.FUA if export.can_flush else 0
        self._read_flags = self._any_flags | (CommandFlag.DF if structured or extended else 0)
        self._write_flags = self._any_flags | (CommandFlag.PAYLOAD_LEN if extended else 0)

    def parse(self, buffer: bytes | bytearray | memoryview, start: int = 0) -> Request:
        """Return the request whose header is at start. Raises BadMagic: the connection cannot go on."""
        magic, flags, command, cookie, offset, length = self._form.unpack_from(buffer, start)
        if magic != self._magic:
            raise BadMagic(f"request magic {magic:#x}")
        request = Request(command, flags, cookie, offset, length)
        if command == _READ:
            # Nearly all requests of a busy connection are these two: the common answer comes first.
            if not flags & ~self._read_flags and offset + length <= self._size and length <= MAX_PAYLOAD:
                return request
        elif command == _WRITE:
            request.payload = length
            if (
                not flags & ~self._write_flags
                and offset + length <= self._size
                and length <= MAX_PAYLOAD
                and not self._read_only
            ):
                return request
        if flags & _PAYLOAD_LEN and self.extended:
            request.payload = length
        self._check(request)
        return request

    def _check(self, request: Request) -> None:
        allowed = _FLAGS.get(request.command)  # type: ignore[call-overload]
        if allowed is None:
            request.refuse(ErrorNumber.EINVAL, "unknown command")
        elif request.flags & ~(self._allowed(request.command) | self._any_flags):
            request.refuse(ErrorNumber.EINVAL, "unknown flag, or not for this command")
        elif request.command == _FLUSH and not self.export.can_flush:
            request.refuse(ErrorNumber.EINVAL, "the storage cannot flush")
        elif request.command in (_DISC, _FLUSH):
            return
        elif self._read_only and request.command in _WRITING:
            request.refuse(ErrorNumber.EPERM, "the export is read-only")
        elif request.offset + request.length > self._size:
            past_end = request.command in (Command.WRITE, Command.WRITE_ZEROES)
            number = ErrorNumber.ENOSPC if past_end else ErrorNumber.EINVAL
            request.refuse(number, "the range is not inside the export")
        elif request.length > MAX_PAYLOAD and request.command == _READ:
            request.refuse(ErrorNumber.EOVERFLOW, "the range is longer than the largest payload")
        elif request.length > MAX_PAYLOAD and request.command == _WRITE:
            request.refuse(ErrorNumber.EINVAL, "the payload is longer than the largest one")
        elif request.command == Command.BLOCK_STATUS:
            self._check_status(request)

    def _check_status(self, request: Request) -> None:
        if not self.allocation:
            request.refuse(ErrorNumber.EINVAL, f"{BASE_ALLOCATION} was not negotiated")
        elif not request.length:
            request.refuse(ErrorNumber.EINVAL, "an empty range has no status")

    def _allowed(self, command: int) -> int:
        if command == _READ:
            return self._read_flags
        if command == _WRITE:
            return self._write_flags
        return _FLAGS[Command(command)]
