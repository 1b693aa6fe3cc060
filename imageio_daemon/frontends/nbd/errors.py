# SPDX-License-Identifier: Apache-2.0
"""What an exception is answered with: the one table of the NBD frontend, and what goes to the log."""

import errno
import logging
from typing import NamedTuple

from ... import errors, logs
from ...nbdproto.constants import Command, ErrorNumber
from ...nbdproto.transmission import Request

log = logging.getLogger(__name__)

#: What a peer is told of a fault of the server. The detail is in the log only.
SERVER_FAILED = "the server failed to perform the operation"
#: Expired, cancelled and removed look the same.
TRANSFER_ENDED = "the transfer has ended"

#: The same holds for what C answers.
ERRORS = {
    errno.EPERM: ErrorNumber.EPERM,
    errno.EACCES: ErrorNumber.EPERM,
    errno.EROFS: ErrorNumber.EPERM,
    errno.ENOSPC: ErrorNumber.ENOSPC,
    errno.EDQUOT: ErrorNumber.ENOSPC,
    errno.EFBIG: ErrorNumber.ENOSPC,
}


class Answer(NamedTuple):
    """The error of a request, and whether the connection ends with it."""

    error: ErrorNumber
    text: str
    ends: bool = False


def answer(exception: BaseException, request: Request) -> Answer:
    """Return the answer to a request that ended with this exception, and log it."""
    match exception:
        case errors.Forbidden() | errors.Unavailable():
            log.debug("request refused: %s", exception)
            return Answer(ErrorNumber.ESHUTDOWN, TRANSFER_ENDED, ends=True)
        case errors.TooLarge():
            return Answer(ErrorNumber.EOVERFLOW, "there is no memory for so long a range")
        case errors.NotFast():
            return Answer(ErrorNumber.ENOTSUP, "the storage has no fast way to zero this")
        case errors.OutOfRange():
            writes = request.command in (Command.WRITE, Command.WRITE_ZEROES)
            return Answer(ErrorNumber.ENOSPC if writes else ErrorNumber.EINVAL, "the range is not inside the image")
        case errors.StorageError():
            log.error("storage failed: %s", exception, extra=logs.fields(command=request.command))
            return Answer(ERRORS.get(exception.errno, ErrorNumber.EIO), SERVER_FAILED)
        case _:
            log.error("request failed", exc_info=exception, extra=logs.fields(command=request.command))
            return Answer(ErrorNumber.EIO, SERVER_FAILED)
