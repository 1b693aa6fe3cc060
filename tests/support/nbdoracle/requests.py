# SPDX-License-Identifier: Apache-2.0
"""Requests, and whether they are allowed.

This parses the header. The caller receives the payload.
"""

from imageio_daemon.nbdproto.agreement import Transmission
from imageio_daemon.nbdproto.constants import (
    EXTENDED_REQUEST,
    MAX_PAYLOAD,
    REQUEST,
    Command,
    CommandFlag,
    ErrorNumber,
)
from imageio_daemon.nbdproto.messages import COMPACT_REQUEST, EXTENDED_REQUEST_HEADER, BadMagic
from tests.support.nbdoracle.limits import MAX_DRAINED_PAYLOAD

_READ, _WRITE, _DISC, _FLUSH = int(Command.READ), int(Command.WRITE), int(Command.DISC), int(Command.FLUSH)
_PAYLOAD_LEN = CommandFlag.PAYLOAD_LEN

#: The flags that each command accepts, besides FUA, which all accept if it is offered.
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


class Request:
    """One request. `payload` bytes follow the header. `error` is why it is refused, or 0."""

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
        """Return whether it is a READ."""
        return self.command == _READ

    @property
    def fua(self) -> bool:
        """Return whether the change must be on stable storage before the reply."""
        return bool(self.flags & CommandFlag.FUA)

    @property
    def must_end(self) -> bool:
        """Return whether its payload is too long to be read and dropped. Then answer, and close."""
        return self.payload > MAX_DRAINED_PAYLOAD

    def refuse(self, error: ErrorNumber, text: str) -> None:
        """Set the answer."""
        self.error = error
        self.text = text


class Requests:
    """Check the requests of one connection against what was negotiated."""

    def __init__(self, transmission: Transmission) -> None:
        self.export = export = transmission.export
        self.structured = transmission.structured
        self.extended = extended = transmission.extended
        self.contexts = transmission.contexts
        self._form, self._magic = (
            (EXTENDED_REQUEST_HEADER, EXTENDED_REQUEST) if extended else (COMPACT_REQUEST, REQUEST)
        )
        self.header_size = self._form.size
        self._size = export.size
        self._read_only = export.read_only
        self._any_flags = CommandFlag.FUA if export.can_flush else 0
        self._read_flags = self._any_flags | (CommandFlag.DF if transmission.structured or extended else 0)
        self._write_flags = self._any_flags | (CommandFlag.PAYLOAD_LEN if extended else 0)

    def parse(self, buffer: bytes | bytearray | memoryview, start: int = 0) -> Request:
        """Return the request whose header is at start. Raises BadMagic: the connection cannot go on."""
        magic, flags, command, cookie, offset, length = self._form.unpack_from(buffer, start)
        if magic != self._magic:
            raise BadMagic(f"request magic {magic:#x}")
        request = Request(command, flags, cookie, offset, length)
        if command == _READ:
            # Nearly all requests of a busy connection are these two, so they come first.
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
        if not self.contexts:
            request.refuse(ErrorNumber.EINVAL, "no metadata context was selected")
        elif not request.length:
            request.refuse(ErrorNumber.EINVAL, "an empty range has no status")

    def _allowed(self, command: int) -> int:
        if command == _READ:
            return self._read_flags
        if command == _WRITE:
            return self._write_flags
        return _FLAGS[Command(command)]
