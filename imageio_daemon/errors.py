# SPDX-License-Identifier: Apache-2.0
"""The exception tree: one class for each meaning a frontend has to tell apart.

How a class is answered stands in exactly one table for each protocol, in the frontends. An exception that is not below
:class:`Error` is a bug: it is logged with its traceback and the client is told nothing but that the server failed.
"""

import errno as _errno
import os

#: One answer for unknown, expired, cancelled and not allowed: whoever asks learns nothing.
DENIED = "You are not allowed to access this resource"


class Error(Exception):
    """Base of everything that is raised on purpose."""


class ConfigError(Error):
    """The configuration is not usable; the message is one line for the administrator."""


class InvalidRequest(Error):
    """The request's own text is malformed; the message is the reason, safe to send to the peer."""


class Truncated(InvalidRequest):
    """The peer announced more bytes than it sent."""


class TooLarge(InvalidRequest):
    """A body or a field is larger than its named limit."""


class HeadTooLarge(InvalidRequest):
    """A request's head is larger than its limit."""


class UnsupportedEncoding(InvalidRequest):
    """The body is encoded in a way that is not served."""


class Forbidden(Error):
    """No such ticket, or it is expired, cancelled, or does not allow the operation. All look the same to the peer."""


class NotFound(Error):
    """The resource does not exist, or the image cannot answer the question."""


class MethodNotAllowed(Error):
    """The resource exists and does not know the method."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"Method {method[:40]} is not allowed here")
        self.allowed = allowed


class OutOfRange(Error):
    """The range is not inside the ticket or the image.

    `size` is what the peer may address, in bytes; None when that is not known.
    """

    def __init__(self, message: str, size: int | None = None) -> None:
        super().__init__(message)
        self.size = size


class Changed(Error):
    """The image is not, or not for certain, the one that the peer has a part of."""


class Shortened(OutOfRange):
    """Others have made the image shorter: what it had there is lost."""


class InUse(Error):
    """The ticket is still used; the caller may try again."""


class TooManyConnections(Error):
    """A limit on connections is reached; the peer may try again later."""


class TooManyTickets(Error):
    """The limit on tickets is reached."""


class NotFast(Error):
    """The storage has no way to do this without data I/O, and the caller asked for no other. Nothing was changed."""

    def __init__(self, reason: str = "The storage cannot do this without data I/O") -> None:
        super().__init__(reason)


class Canceled(Forbidden):
    """The transfer was cancelled while the operation ran."""

    def __init__(self, reason: str = "The transfer was cancelled") -> None:
        super().__init__(reason)


class PeerGone(Error):
    """The peer closed the connection, or made no progress for too long, in the middle of a request."""


class StorageError(Error):
    """A system call on the image failed, or the server behind it did.

    `errno` is the positive error number, `operation` what we were doing, `syscall` what failed. For the log only.
    """

    def __init__(self, errno: int, operation: str, syscall: str, detail: str = "") -> None:
        name = _errno.errorcode.get(errno, str(errno))
        where = f" {detail}" if detail else ""
        super().__init__(f"{operation}{where}: {syscall}: {os.strerror(errno)} ({name})")
        self.errno = errno


class Unanswered(StorageError):
    """A server was asked for something, and no answer came. If it was a change, it may still be made, at any time."""


class ServerGone(StorageError):
    """The server that has the image is not there, left in the middle of an operation, or broke its protocol.

    What it was asked to change may or may not have been changed.
    """

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(_errno.ENOTCONN, f"NBD server {server}", reason)


class CannotFlush(StorageError):
    """The server that has the image has no way to put what it was sent on stable storage."""

    def __init__(self, server: str) -> None:
        super().__init__(_errno.EOPNOTSUPP, f"flush {server}", "the server does not offer it")


class Unavailable(Error):
    """The server is shutting down or has no room for the request now."""
