# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a transfer, a class for each exit status. A message is one line: what failed, what to do."""

from typing import ClassVar

from ..errors import Error


class ClientError(Error):
    """Base of all that ends a transfer; `status`: the command's exit status."""

    status: ClassVar[int] = 1


class Usage(ClientError):
    """The arguments do not go together."""

    status = 2


class Refused(ClientError):
    """The server refuses the request, and would refuse it again; `http_status` is 4xx."""

    status = 3

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class ServerFailed(ClientError):
    """The server can't be reached, is lost in the middle, fails or speaks something else."""

    status = 4


class Temporary(ServerFailed):
    """A failure of the server or of the way to it that may go by: the request can be sent again.

    `http_status`: 5xx, or None when there was no answer.
    """

    def __init__(self, message: str, http_status: int | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status


class FlushFailed(ServerFailed):
    """The storage could not keep what was written: nothing since the flush before is safe."""


class LocalError(ClientError):
    """The source can't be read, or the target on this side can't be written."""

    status = 5


class ChecksumMismatch(ClientError):
    """Source and target have different content."""

    status = 6


class StateMismatch(ClientError):
    """There is the state of an upload that can't be continued: its source or its target is another one."""

    status = 7


class Stopped(ClientError):
    """The transfer was stopped, by a failure elsewhere or by its user."""
