# SPDX-License-Identifier: Apache-2.0
"""The answer of the HTTP frontend to each exception, in one table, and the log lines of failed requests."""

import logging
from typing import NamedTuple

from aiohttp import web

from ... import errors
from ...runtime import logs
from .responses import json_response, text_response

log = logging.getLogger(__name__)

#: The text of an answer to a fault of the server. Only the log has the details.
SERVER_FAILED = "The server failed to perform the operation"


class _ErrorAnswer(NamedTuple):
    status: int
    code: str
    close: bool = False
    text: str | None = None  # by default, the text of the exception


#: Seconds after which a client may try again if the server is ending or has no memory. A restart takes one second.
RETRY_AFTER = 1

#: Seconds after which a client may try again if its transfer has to wait until another one has ended.
RETRY_TRANSFER_AFTER = 10

#: The content coding of bodies that the daemon decodes (RFC 9659).
ENCODING = "zstd"

#: The field of an answer that has the code of the error (docs/adr/0031-error-codes.md).
CODE = "X-Error-Code"

#: The codes of answers without an exception: a finalize finds another checksum, or the daemon is not ready.
MISMATCH, NOT_READY = "mismatch", "not_ready"

#: NBD has its own table in frontends/nbd/errors.py.
#: The codes are part of the API: docs/images-api.md explains each.
_TABLE: dict[type[BaseException], _ErrorAnswer] = {
    errors.InvalidRequest: _ErrorAnswer(400, "invalid_request"),
    errors.Truncated: _ErrorAnswer(400, "truncated_request", close=True),
    errors.TooLarge: _ErrorAnswer(413, "too_large"),
    errors.HeadTooLarge: _ErrorAnswer(431, "head_too_large", close=True),
    errors.UnsupportedEncoding: _ErrorAnswer(415, "unsupported_encoding"),
    errors.Forbidden: _ErrorAnswer(403, "not_allowed", close=True),
    errors.NotFound: _ErrorAnswer(404, "not_found"),
    errors.MethodNotAllowed: _ErrorAnswer(405, "method_not_allowed"),
    errors.InUse: _ErrorAnswer(409, "in_use"),
    errors.ImageInUse: _ErrorAnswer(409, "image_in_use"),
    errors.BitmapInUse: _ErrorAnswer(404, "bitmap_in_use"),
    errors.Changed: _ErrorAnswer(412, "changed"),
    errors.OutOfRange: _ErrorAnswer(416, "out_of_range"),
    errors.Unusable: _ErrorAnswer(422, "image_unusable"),
    errors.NotFast: _ErrorAnswer(422, "not_fast"),
    errors.TooManyConnections: _ErrorAnswer(503, "too_many_connections", close=True),
    errors.TooManyTickets: _ErrorAnswer(503, "too_many_tickets"),
    errors.TooManyTransfers: _ErrorAnswer(503, "too_many_transfers", close=True),
    errors.TooManyDecoders: _ErrorAnswer(503, "too_many_decoders", close=True),
    errors.Unavailable: _ErrorAnswer(503, "unavailable", close=True),
    errors.PeerGone: _ErrorAnswer(400, "truncated_request", close=True),
    errors.StorageError: _ErrorAnswer(500, "storage_io", text=SERVER_FAILED),
    errors.CannotFlush: _ErrorAnswer(
        500, "cannot_flush", text="The server that has the image cannot put it on stable storage"
    ),
    errors.ServerGone: _ErrorAnswer(502, "server_gone", text="The server that has the image is gone"),
    errors.WayGone: _ErrorAnswer(502, "server_gone", close=True, text="The server that has the image is gone"),
    errors.WaySilent: _ErrorAnswer(504, "server_silent", close=True, text="The server that has the image is silent"),
    # Any other exception is a bug.
    BaseException: _ErrorAnswer(500, "internal_error", text=SERVER_FAILED),
}

#: The answers to a StorageError whose class has no answer of its own.
_STORAGE: dict[errors.Fault, _ErrorAnswer] = {
    errors.Fault.FULL: _ErrorAnswer(507, "storage_full", text="The storage of the image has no room left"),
    errors.Fault.PERMISSION: _ErrorAnswer(
        500, "storage_permission", text="The server has no permission for this image"
    ),
    errors.Fault.GONE: _ErrorAnswer(500, "storage_gone", text="The storage of the image is gone"),
    errors.Fault.NO_IMAGE: _ErrorAnswer(
        422, "image_unusable", text="The ticket names neither a file nor a block device"
    ),
    errors.Fault.IO: _TABLE[errors.StorageError],
}
ENTRIES = (*_TABLE.values(), *_STORAGE.values())


def answer(exception: Exception, client: str, *, json: bool = False) -> web.Response:
    """Return the answer to a request that raised this exception, and log the exception.

    `client` is the client's address, for the log. With `json` the answer is a document, not a line of text. The answer
    closes the connection if the table says so. 405 has the field Allow (RFC 9110 15.5.6). 415 has Accept-Encoding (RFC
    9110 12.5.3). 416 has the size of the image in Content-Range if it is known (RFC 9110 15.5.17). 503 has Retry-After
    (RFC 9110 10.2.3) if the client may soon try again. An exception that is not an errors.Error is a bug: it is logged
    with its traceback and answered with 500.
    """
    entry = _entry(exception)
    _log(exception, entry.status, client)
    headers = {CODE: entry.code}
    if isinstance(exception, errors.MethodNotAllowed):
        headers["Allow"] = ",".join(exception.allowed)
    if isinstance(exception, errors.UnsupportedEncoding):
        headers["Accept-Encoding"] = ENCODING
    if isinstance(exception, errors.OutOfRange) and exception.size is not None:
        headers["Content-Range"] = f"bytes */{exception.size}"
    if isinstance(exception, errors.Unavailable):
        busy = isinstance(exception, errors.TooManyTransfers)
        headers["Retry-After"] = str(RETRY_TRANSFER_AFTER if busy else RETRY_AFTER)
    if not json:
        return text_response(entry.status, text(exception), headers, close=entry.close)
    document = {"code": entry.code, "message": text(exception), "status": entry.status}
    return json_response(document, headers, status=entry.status, close=entry.close)


def text(exception: BaseException) -> str:
    """Return the text with which a client learns of an exception."""
    told = exception.told if isinstance(exception, errors.Error) else ""
    return _entry(exception).text or told


def code(exception: BaseException) -> str:
    """Return the code of an exception, which is the same in all versions."""
    return _entry(exception).code


def code_of(status: int) -> str:
    """Return the code for another server's answer without one: the first code with this status."""
    default = _TABLE[errors.InvalidRequest if status < 500 else errors.StorageError]
    return next((entry.code for entry in ENTRIES if entry.status == status), default.code)


def _entry(exception: BaseException) -> _ErrorAnswer:
    entry = next(_TABLE[kind] for kind in type(exception).__mro__ if kind in _TABLE)
    if isinstance(exception, errors.StorageError) and entry is _TABLE[errors.StorageError]:
        return _STORAGE[exception.fault]
    return entry


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
