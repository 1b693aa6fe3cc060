# SPDX-License-Identifier: Apache-2.0
"""The exception tree: one class for each meaning that a frontend distinguishes.

Each frontend has one table from classes to answers. An exception that is not a subclass of :class:`Error` is a bug: it
is logged with its traceback, and the client learns only that the server failed.
"""

import enum
import errno as _errno
import os

#: The answer for unknown, expired and cancelled tickets and for operations that are not allowed: it does not reveal
#: which of them it is.
DENIED = "You are not allowed to access this resource"

#: The answer to requests that the stop of the server has kept from beginning or from ending.
STOPPING = "The server is shutting down"


class Error(Exception):
    """Base of all exceptions that the daemon and the client raise on purpose."""

    _told: str | None = None

    @property
    def told(self) -> str:
        """Return what a peer is told where its frontend has no words of its own: the message, unless a class tells."""
        return str(self) if self._told is None else self._told


class ConfigError(Error):
    """The configuration is invalid, or asks for what the host does not have. One line for the administrator."""


class InvalidRequest(Error):
    """The request is malformed. The message is the reason and may be sent to the peer."""


class Truncated(InvalidRequest):
    """The peer sent fewer bytes than it announced."""


class TooLarge(InvalidRequest):
    """A body or a field is larger than its named limit."""


class HeadTooLarge(InvalidRequest):
    """The head of an HTTP request is larger than its limit."""


class UnsupportedEncoding(InvalidRequest):
    """The body has a content or transfer coding that is not supported."""


class Forbidden(Error):
    """The ticket is unknown, expired or cancelled, or does not allow the operation. The peer is not told which."""


class NotFound(Error):
    """The resource does not exist, or the image does not have the information."""


class MethodNotAllowed(Error):
    """The resource exists and does not support the method. `allowed` has those that it supports."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"Method {method[:40]} is not allowed here")
        self.allowed = allowed


class OutOfRange(Error):
    """The range is not inside the ticket or the image. `size` is what the peer may address, if it is known."""

    def __init__(self, message: str, size: int | None = None) -> None:
        super().__init__(message)
        self.size = size


class Changed(Error):
    """The image has changed since the peer read a part of it, or this cannot be ruled out."""


class Shortened(OutOfRange):
    """The image became shorter while it was open, so data of the range is lost."""


class InUse(Error):
    """Operations of the ticket are still running. The caller may try again."""


class ImageInUse(InUse):
    """Another program uses the image, in a way that contradicts writing to it. The message may be sent to the peer."""

    def __init__(self, reason: str = "another program has locked it, as a running virtual machine does") -> None:
        super().__init__(f"The image is in use: {reason}")


class BitmapInUse(Error):
    """The bitmap of the image does not tell what has changed: a program has it, or has crashed with it."""

    def __init__(self) -> None:
        super().__init__("The bitmap is in use, or was left so by a crash: it does not tell what has changed")


class TooManyConnections(Error):
    """A limit on connections is reached. The peer may try again later."""


class TooManyTickets(Error):
    """The limit on tickets is reached."""


class NotFast(Error):
    """The storage cannot zero without writing data, and the request is for fast zeroing only. Nothing was changed."""

    def __init__(self, reason: str = "The storage cannot do this without data I/O") -> None:
        super().__init__(reason)


class Canceled(Forbidden):
    """The transfer was cancelled while the operation ran."""

    def __init__(self, reason: str = "The transfer was cancelled") -> None:
        super().__init__(reason)


class PeerGone(Error):
    """The peer closed the connection or timed out in the middle of a request."""


class Fault(enum.Enum):
    """The meaning of an error number of storage: what has to be put right, and for most not by trying again."""

    FULL = "no room: the storage or a quota is full, or the file may not be that large"
    PERMISSION = "the daemon or the storage does not permit it"
    NO_IMAGE = "there is something else than a file or a block device"
    GONE = "the file, the device or the share is not there, or its name leads nowhere"
    IO = "anything else"


#: What error numbers mean, as errno(3) has them. Each frontend has a table from the meaning to its answer.
FAULTS = {
    _errno.ENOSPC: Fault.FULL,
    _errno.EDQUOT: Fault.FULL,
    _errno.EFBIG: Fault.FULL,
    _errno.EACCES: Fault.PERMISSION,
    _errno.EPERM: Fault.PERMISSION,
    _errno.EROFS: Fault.PERMISSION,
    _errno.ENOTBLK: Fault.NO_IMAGE,
    _errno.ENODEV: Fault.GONE,
    _errno.ENXIO: Fault.GONE,
    _errno.ESTALE: Fault.GONE,
    _errno.ENOENT: Fault.GONE,
    _errno.ENOTDIR: Fault.GONE,
    _errno.ELOOP: Fault.GONE,
    _errno.ENAMETOOLONG: Fault.GONE,
    _errno.ENOMEDIUM: Fault.GONE,
}


class StorageError(Error):
    """A system call on the image, or the server that has the image, failed. The message is for the log only.

    `errno` is the positive error number, and `fault` its meaning. `operation` was asked for, `syscall` has failed, and
    `detail` names the image or the range.
    """

    _told = "The storage of the image failed"

    def __init__(self, errno: int, operation: str, syscall: str, detail: str = "") -> None:
        name = _errno.errorcode.get(errno, str(errno))
        where = f" {detail}" if detail else ""
        super().__init__(f"{operation}{where}: {syscall}: {os.strerror(errno)} ({name})")
        self.errno = errno
        self.fault = FAULTS.get(errno, Fault.IO)


class Unusable(StorageError):
    """The image cannot be served as the ticket names it, until somebody mends one of the two: no retry helps.

    `told` is a sentence for the peer, without names of the host or of other servers. The rest is for the log.
    """

    def __init__(self, told: str, operation: str, syscall: str, detail: str = "") -> None:
        super().__init__(_errno.EINVAL, operation, syscall, detail)
        where = f" {detail}" if detail else ""
        self.args = (f"{operation}{where}: {syscall}: {told}",)  # no call has failed: the number says nothing
        self._told = told


class ServerGone(StorageError):
    """The server that has the image cannot be reached, closed the connection, or violated its protocol.

    A change that it was asked for may or may not have happened.
    """

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(_errno.ENOTCONN, f"NBD server {server}", reason)


class ServerRefuses(ServerGone):
    """The server that has the image is there, and refuses it. `told` is as in Unusable, `reason` for the log."""

    def __init__(self, server: str, reason: str, told: str) -> None:
        super().__init__(server, reason)
        self.reason = reason
        self._told = told


class WayGone(StorageError):
    """The other server of the images API, to which the request is passed on, is gone or violated the protocol.

    A change that it was asked for may or may not have happened. The client's connection ends, so that it knows.
    """

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(_errno.ENOTCONN, server, reason)


class WaySilent(StorageError):
    """The other server, to which the request is passed on, did not answer in time. Otherwise as WayGone."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(_errno.ETIMEDOUT, server, reason)


class CannotFlush(StorageError):
    """The server that has the image does not offer to flush."""

    def __init__(self, server: str) -> None:
        super().__init__(_errno.EOPNOTSUPP, f"flush {server}", "the server does not offer it")


class Unavailable(Error):
    """The server is shutting down, or has no memory for the request now."""


class TooManyDecoders(Unavailable):
    """There is no memory to decode the body, or others need it while the peer lets it wait. Without coding it goes."""

    def __init__(self) -> None:
        super().__init__("There is no memory to decode the body now: send it without Content-Encoding")


class TooManyTransfers(Unavailable):
    """As many transfers as may be are at work. The peer may try again when one has ended."""
