# SPDX-License-Identifier: Apache-2.0
"""The errors of the client, a class for each exit status. A message is one line: what failed, and what to do."""

from ..commands.printable import printable
from ..errors import Error


class ClientError(Error):
    """Base of the client's errors. `status`: the exit status of the command.

    The text can be printed wherever a line is expected, whatever the names in it are. `code`: the
    server's code of the error (docs/images-api.md, errors), if it has told one.
    """

    status: int = 1
    code: str | None = None

    def __str__(self) -> str:
        return printable(super().__str__())


class Usage(ClientError):
    """The arguments are invalid, or contradict each other."""

    status = 2


class Refused(ClientError):
    """The server refuses the request, so a retry is useless. `http_status`: 4xx."""

    status = 3

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class ServerFailed(ClientError):
    """The server cannot be reached, fails, or does not speak the images API."""

    status = 4


class Temporary(ServerFailed):
    """A failure of the server or the connection that may pass: the request can be sent again.

    `http_status`: 5xx, 408 or 429; None if there was no answer. `retry_after`: seconds that the server asks to wait.
    """

    def __init__(self, message: str, http_status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.retry_after = retry_after


class NothingListens(Temporary):
    """Nothing listens at the server's address: the address is wrong, or the server does not run, and may be started."""


class NoDecoder(Temporary):
    """The server has no memory to decode a body now: it is sent again without its coding, at once."""


class StorageFailed(ServerFailed):
    """The server's storage cannot do what it was asked for, and a retry would fail, too, until somebody mends it."""


class NoRoom(StorageFailed):
    """The storage of the target has no room for the data, as the server told before the first byte or later."""

    status = 3


class FlushFailed(StorageFailed):
    """The server's storage failed to flush: what was written since the last flush may be lost.

    `status`: 3 if it had no room for it.
    """


class WritesLost(ServerFailed):
    """The server was restarted after it had answered writes that no flush has confirmed: they may be lost.

    `ranges`: (offset, length) of what has to be written again, in bytes and in order.
    """

    def __init__(self, message: str, ranges: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.ranges = ranges


class LocalError(ClientError):
    """The local source cannot be read, or the local target cannot be written."""

    status = 5


class ChecksumMismatch(ClientError):
    """Source and target have different content."""

    status = 6


class StateMismatch(ClientError):
    """There is an earlier upload that cannot be continued, because its source or its target is another one."""

    status = 7


class Stopped(ClientError):
    """The transfer was stopped by an error in another thread or by the user."""
