# SPDX-License-Identifier: Apache-2.0
"""The parser of the client's bytes in the negotiation: its flags and its options."""

from typing import NamedTuple

from ..constants import MAX_DRAINED_OPTION, MAX_OPTION, MAX_OPTIONS, HandshakeFlag
from ..option_payloads import CLIENT_FLAGS, OPTION, OptionHeader

_FLAGS = HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES


class ClientViolation(Exception):
    """The client violated the protocol, and the connection must be closed. The exception's text is for the log."""


class ClientFlags(NamedTuple):
    """The client's handshake flags, its first message."""

    fixed_newstyle: bool
    no_zeroes: bool


class ClientOption(NamedTuple):
    """One option. `payload` is None if it was longer than MAX_OPTION, and so was skipped."""

    option: int
    payload: bytes | None


class OptionStream:
    """Collect bytes until a message is complete. Skip the payload of a long option, to save memory."""

    def __init__(self) -> None:
        self._input = bytearray()
        self._skip = 0  # bytes of a too long payload that are still missing
        self._flags_seen = False
        #: How many more options the client may send.
        self.options_left = MAX_OPTIONS

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that were received."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._input += data[skipped:]

    @property
    def waiting(self) -> int:
        """Return the number of bytes that next() has not returned."""
        return len(self._input)

    def rest(self) -> bytes:
        """Return the bytes after the last message that next() has returned."""
        return bytes(self._input)

    def next(self) -> ClientFlags | ClientOption | None:
        """Return the next message, or None if more bytes are needed. Raises ClientViolation, BadMagic."""
        if self._skip:
            return None
        return self._next_option() if self._flags_seen else self._next_flags()

    def _next_flags(self) -> ClientFlags | None:
        if len(self._input) < CLIENT_FLAGS.size:
            return None
        (flags,) = CLIENT_FLAGS.unpack(self._take(CLIENT_FLAGS.size))
        if flags & ~_FLAGS:
            raise ClientViolation(f"client flags {flags:#x}")
        self._flags_seen = True
        return ClientFlags(bool(flags & HandshakeFlag.FIXED_NEWSTYLE), bool(flags & HandshakeFlag.NO_ZEROES))

    def _next_option(self) -> ClientOption | None:
        if len(self._input) < OPTION.size:
            return None
        header = OptionHeader.unpack(bytes(self._input[: OPTION.size]))
        if header.length > MAX_DRAINED_OPTION:
            raise ClientViolation(f"option {header.option} with {header.length} bytes")
        too_long = header.length > MAX_OPTION
        if not too_long and len(self._input) < OPTION.size + header.length:
            return None
        if not self.options_left:
            raise ClientViolation("too many options")
        self.options_left -= 1
        self._take(OPTION.size)
        payload = self._take(min(header.length, len(self._input)))
        self._skip = header.length - len(payload)
        return ClientOption(header.option, None if too_long else payload)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._input[:count])
        del self._input[:count]
        return taken
