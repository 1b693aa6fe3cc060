# SPDX-License-Identifier: Apache-2.0
"""What the answers of a server that refuses or fails mean, and what to do then."""

import http.client
import re

from ..errors import ClientError, Refused, ServerFailed, StorageFailed, Temporary

#: Statuses below 500 of servers and proxies that ask for a later try (RFC 9110 15.5.9, RFC 6585 4).
LATER = (408, 429)

EXPLANATIONS = {
    403: ("the ticket does not allow this", "it may have expired, ask for a new one"),
    404: ("not found", "is this the URL of an image?"),
    409: ("something else has the image", "try again when that has ended"),
    416: ("the image does not fit into the target", "make the target larger"),
}


#: Codes of failures that a retry does not mend (docs/images-api.md, errors): what it is, and what to do.
STORAGE_FAILURES = {
    "storage_full": ("the storage of the image is full", "make room there, and repeat the command"),
    "storage_permission": (
        "the server has no access to the image",
        "its administrator finds the file and the reason in the log of the server",
    ),
    "storage_gone": ("the image is gone from the server", "is its storage mounted? The log of the server has its path"),
    "cannot_flush": ("the server cannot put the image on stable storage", "it needs a ticket for another NBD server"),
}
#: The code of a status that says the same, for servers without codes (RFC 4918 11.5).
CODES = {507: "storage_full"}


def failure_of(peer: str, method: str, response: http.client.HTTPResponse, reason: str) -> ClientError:
    """Return the error that an answer means. reason: the first line of its body, printable."""
    code = error_code(response)
    failure = _meaning(peer, method, response, reason, code)
    failure.code = code
    return failure


def _meaning(peer: str, method: str, response: http.client.HTTPResponse, reason: str, code: str | None) -> ClientError:
    status = response.status
    what = f"({method}: {status} {reason.strip()})"
    if status >= 500 and code in STORAGE_FAILURES:
        explanation, hint = STORAGE_FAILURES[code]
        return StorageFailed(f"{explanation} {what}: {hint}")
    if status >= 500 or status in LATER:
        explanation = "the server is busy" if status in (*LATER, 503) else "the server failed"
        return Temporary(f"{explanation} {what}: see the log of {peer}", status, retry_after(response))
    if status >= 400:
        explanation, hint = EXPLANATIONS.get(status, ("the server refuses the request", "see the log of the server"))
        return Refused(f"{explanation} {what}: {hint}", status)
    return ServerFailed(f"{peer} does not speak the images API {what}")


def error_code(response: http.client.HTTPResponse) -> str | None:
    """Return the code of an answer, or that of its status; None: it has none."""
    told = response.headers["X-Error-Code"] or ""
    return told if re.fullmatch("[a-z_]{1,64}", told) else CODES.get(response.status)


def retry_after(response: http.client.HTTPResponse) -> float | None:
    """Return the seconds of Retry-After (RFC 9110 10.2.3); None without it, and for a date."""
    text = response.headers["Retry-After"] or ""
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else None
