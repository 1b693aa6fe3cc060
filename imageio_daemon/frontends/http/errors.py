# SPDX-License-Identifier: Apache-2.0
"""The one table of the HTTP frontend from exceptions to answers, and the log lines of failed requests."""

import logging
from typing import NamedTuple

from aiohttp import web

from ... import errors
from ...service import logs
from .messages import text_response

log = logging.getLogger(__name__)

#: The text of an answer to a fault of the server. Only the log has the details.
SERVER_FAILED = "The server failed to perform the operation"


class _Answer(NamedTuple):
    status: int
    close: bool = False
    text: str | None = None  # None: the message of the exception


#: Seconds after which a client may try again that finds the server ending, or without memory. A restart takes one.
RETRY_AFTER = 1

#: The same for a client whose transfer has to wait until another one has ended.
RETRY_TRANSFER_AFTER = 10

#: NBD has its own table in frontends/nbd/errors.py. _refusal() in storage/http/client.py is the inverse of this one.
_TABLE: dict[type[BaseException], _Answer] = {
    errors.InvalidRequest: _Answer(400),
    errors.Truncated: _Answer(400, close=True),
    errors.TooLarge: _Answer(413),
    errors.HeadTooLarge: _Answer(431, close=True),
    errors.UnsupportedEncoding: _Answer(415),
    errors.Forbidden: _Answer(403, close=True),
    errors.NotFound: _Answer(404),
    errors.MethodNotAllowed: _Answer(405),
    errors.InUse: _Answer(409),
    errors.Changed: _Answer(412),
    errors.OutOfRange: _Answer(416),
    errors.NotFast: _Answer(422),
    errors.TooManyConnections: _Answer(503, close=True),
    errors.TooManyTickets: _Answer(503),
    errors.Unavailable: _Answer(503, close=True),
    errors.PeerGone: _Answer(400, close=True),
    errors.StorageError: _Answer(500, text=SERVER_FAILED),
    errors.CannotFlush: _Answer(500, text="The server that has the image cannot put it on stable storage"),
    errors.ServerGone: _Answer(502, text="The server that has the image is gone"),
    # Any other exception is a bug.
    BaseException: _Answer(500, text=SERVER_FAILED),
}


def answer(exception: Exception, client: str) -> web.Response:
    """Return the answer to a request that raised this exception, and log the exception.

    client: the address of the client, for the log. The answer closes the connection if the table says so. 405 has the
    field Allow (RFC 9110 15.5.6). 416 has the size of the image in Content-Range if it is known (RFC 9110 15.5.17). 503
    for what is unavailable for a moment has Retry-After (RFC 9110 10.2.3). An exception that is not an errors.Error is
    a bug: it is logged with its traceback and answered with 500.
    """
    entry = _entry(exception)
    _log(exception, entry.status, client)
    headers = {}
    if isinstance(exception, errors.MethodNotAllowed):
        headers["Allow"] = ",".join(exception.allowed)
    if isinstance(exception, errors.OutOfRange) and exception.size is not None:
        headers["Content-Range"] = f"bytes */{exception.size}"
    if isinstance(exception, errors.Unavailable):
        busy = isinstance(exception, errors.TooManyTransfers)
        headers["Retry-After"] = str(RETRY_TRANSFER_AFTER if busy else RETRY_AFTER)
    return text_response(entry.status, text(exception), headers, close=entry.close)


def text(exception: BaseException) -> str:
    """Return what a client is told of an exception."""
    return _entry(exception).text or str(exception)


def _entry(exception: BaseException) -> _Answer:
    return next(_TABLE[kind] for kind in type(exception).__mro__ if kind in _TABLE)


def _log(exception: Exception, status: int, client: str) -> None:
    fields = logs.fields(status=status, client=client)
    if isinstance(exception, errors.PeerGone):
        log.info("the client is gone: %s", exception, extra=fields)
    elif isinstance(exception, errors.StorageError):
        log.error("storage failed: %s", exception, extra=fields)
    elif isinstance(exception, errors.Shortened):
        log.warning("the image got shorter: %s", exception, extra=fields)
    elif isinstance(exception, errors.Error):
        log.debug("request refused: %s", exception, extra=fields)
    else:
        log.error("request failed", exc_info=exception, extra=fields)
