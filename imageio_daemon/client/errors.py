# SPDX-License-Identifier: Apache-2.0
"""The errors of the client, with the exit status of each. A message is one line: what failed, and what to do."""

from ..commands.printable import printable
from ..errors import Error


class ClientError(Error):
    """The base class of the client's errors. `status` is the exit status of the command.

    The text is one printable line, whatever the names in it are. `code` is the server's code of the error
    (docs/images-api.md, errors), if there is one.
    """

    status: int = 1
    code: str | None = None

    def __str__(self) -> str:
        return printable(super().__str__())


class Usage(ClientError):
    """The arguments are invalid, or contradict each other."""

    status = 2


class Refused(ClientError):
    """The server refuses the request, so a retry is useless. `http_status` is 4xx."""

    status = 3

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class OtherFinalized(Refused):
    """The ticket was finalized with another image, so it does not allow writing any more. Nothing was transferred."""


class ServerFailed(ClientError):
    """The server cannot be reached, fails, or does not speak the images API."""

    status = 4


class Temporary(ServerFailed):
    """A failure of the server or the connection that may be temporary: the request can be sent again.

    `http_status` is 5xx, 408 or 429, or None without an answer. `retry_after` is the seconds that the server asks to
    wait.
    """

    def __init__(self, message: str, http_status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.retry_after = retry_after


class NothingListens(Temporary):
    """Nothing listens at the server's address. The address is wrong, or the server does not run now."""


class NoDecoder(Temporary):
    """The server has no memory to decode a body now. The body is sent again at once, without coding."""


class StorageFailed(ServerFailed):
    """The server's storage has failed. A retry would fail, too, until somebody mends it."""


class NoRoom(StorageFailed):
    """The storage of the target has no room for the data. The server says so before the first byte or later."""

    status = 3


class FlushFailed(StorageFailed):
    """The server's storage failed to flush: what was written since the last flush may be lost.

    `status` is 3 if the storage had no room.
    """


class WritesLost(ServerFailed):
    """The server was restarted after it had answered writes, and before a flush: they may be lost.

    `ranges` has the ranges to write again, as (offset, length) in bytes and in order.
    """

    def __init__(self, message: str, ranges: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.ranges = ranges


class LocalError(ClientError):
    """The local source cannot be read, or the local target cannot be written."""

    status = 5


class ImageInUse(LocalError):
    """Another program uses a local image."""


class ChecksumMismatch(ClientError):
    """Source and target have different content."""

    status = 6


class StateMismatch(ClientError):
    """An earlier upload cannot be continued, because its source or its target is another one."""

    status = 7


class Stopped(ClientError):
    """The transfer was stopped by an error in another thread or by the user."""
