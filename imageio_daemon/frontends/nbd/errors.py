# SPDX-License-Identifier: Apache-2.0
"""Errors in NBD: the reply to an option, and the number with which a lane answers a failed request."""

from ... import errors
from ...errors import DENIED, FAULTS, Error, Fault, StorageError
from ...nbdproto.constants import ErrorNumber, Reply

_ANSWERS = {Fault.FULL: ErrorNumber.ENOSPC, Fault.PERMISSION: ErrorNumber.EPERM}

#: The NBD error for an errno of storage. Any other errno becomes EIO (proto.md, "Error values"). The table for HTTP is
#: in frontends/http/errors.py. The NBD client in storage/nbd keeps the number that its server has sent.
ERRORS = {number: _ANSWERS[fault] for number, fault in FAULTS.items() if fault in _ANSWERS}

#: The replies that refuse an export (proto.md, "Option reply types"); the first row that fits counts.
_REPLIES: tuple[tuple[type[Error], Reply], ...] = (
    (errors.Forbidden, Reply.ERR_UNKNOWN),
    (errors.NotFound, Reply.ERR_UNKNOWN),  # the client asks for a bitmap that the image does not have
    (errors.BitmapInUse, Reply.ERR_POLICY),
    (errors.ImageInUse, Reply.ERR_POLICY),
    (errors.TooManyConnections, Reply.ERR_POLICY),
    (errors.TooManyTransfers, Reply.ERR_POLICY),
    (StorageError, Reply.ERR_PLATFORM),
    (Error, Reply.ERR_SHUTDOWN),
)


def refusal(error: Error) -> tuple[Reply, str]:
    """Return the reply, with a text for the client, to an option that enters an export or asks about it."""
    reply = next(reply for kind, reply in _REPLIES if isinstance(error, kind))
    if isinstance(error, errors.Forbidden):
        return reply, DENIED  # the same for an expired ticket as for none
    return reply, f"the image cannot be opened: {error.told}" if isinstance(error, StorageError) else str(error)
