# SPDX-License-Identifier: Apache-2.0
"""What refusals and failures of a server mean, and what to do about them."""

import errno
import http.client
import re
import socket
from collections.abc import Collection

from ..errors import ClientError, NoDecoder, NoRoom, NothingListens, Refused, ServerFailed, StorageFailed, Temporary

#: Statuses below 500 of servers and proxies that ask for a later try (RFC 9110 15.5.9, RFC 6585 4).
LATER = (408, 429)

#: Texts by status, for refusals that have none below.
EXPLANATIONS = {
    403: ("the ticket does not allow this", "it may have expired, ask for a new one"),
    404: ("not found", "is this the URL of an image?"),
    409: ("something else has the image", "try again when that has ended"),
    416: ("the image does not fit into the target", "make the target larger"),
}
#: Texts for refusals by code (docs/images-api.md, errors).
REFUSALS = {
    "bitmap_in_use": (
        "the bitmap does not tell what has changed",
        "transfer the whole image, and let its manager remove the bitmap and make a new one",
    ),
    "image_unusable": (
        "the server cannot use the image",
        "its administrator finds the file and the reason in the log of the server",
    ),
}


#: Texts by status, for answers without a code. imageio-daemon always sends a code with these, so they come from a proxy
#: (docs/proxies.md).
PROXIES = {
    408: (
        "a proxy before the server did not wait for the rest of the request",
        "its administrator lets it wait longer",
    ),
    413: (
        "a proxy before the server takes no body of this size",
        "its administrator raises the limit, of nginx client_max_body_size",
    ),
    502: ("a proxy before the server got no answer from it", "see the logs of both"),
    504: (
        "a proxy before the server did not wait for its answer",
        "its administrator lets it wait longer, nginx by proxy_read_timeout",
    ),
}

#: The alerts of servers that want a certificate of the client, or another one, in OpenSSL's words.
_ALERT = re.compile(
    "alert (certificate required|unknown ca|bad certificate|unsupported certificate|handshake failure|"
    "certificate (?:expired|revoked|unknown))"
)
NO_ROOM = "storage_full"
#: What is wrong, and what to do, for codes of failures that a retry does not mend (docs/images-api.md, errors).
STORAGE_FAILURES = {
    NO_ROOM: ("the storage of the image is full", "make room there, and repeat the command"),
    "storage_permission": (
        "the server has no access to the image",
        "its administrator finds the file and the reason in the log of the server",
    ),
    "storage_gone": ("the image is gone from the server", "is its storage mounted? The log of the server has its path"),
    "cannot_flush": ("the server cannot put the image on stable storage", "it needs a ticket for another NBD server"),
}
#: The code of a failure that is avoided by a body without coding.
NO_DECODER = "too_many_decoders"
#: The code for a status of servers without codes (RFC 4918 11.5).
CODES = {507: NO_ROOM}


def failure_of(peer: str, method: str, response: http.client.HTTPResponse, reason: str) -> ClientError:
    """Return the error for an answer. `reason` is the first line of its body, printable."""
    code = error_code(response)
    failure = _meaning(peer, method, response, reason, code)
    failure.code = code
    return failure


def _meaning(peer: str, method: str, response: http.client.HTTPResponse, reason: str, code: str | None) -> ClientError:
    status = response.status
    what = f"({method}: {status} {reason.strip()})"
    if status >= 500 and code in STORAGE_FAILURES:
        explanation, hint = STORAGE_FAILURES[code]
        return (NoRoom if code == NO_ROOM else StorageFailed)(f"{explanation} {what}: {hint}")
    proxy = PROXIES.get(status) if code is None else None
    if status >= 500 or status in LATER:
        explanation = "the server is busy" if status in (*LATER, 503) else "the server failed"
        explanation, hint = proxy or (explanation, f"see the log of {peer}")
        failure = NoDecoder if code == NO_DECODER else Temporary
        return failure(f"{explanation} {what}: {hint}", status, retry_after(response))
    if status >= 400:
        refusal = REFUSALS.get(code or "") or proxy or EXPLANATIONS.get(status)
        explanation, hint = refusal or ("the server refuses the request", "see the log of the server")
        return Refused(f"{explanation} {what}: {hint}", status)
    return ServerFailed(f"{peer} does not speak the images API {what}")


def unflushed(features: Collection[str]) -> StorageFailed | None:
    """Return the error for an upload if the server says that it can write but not flush."""
    if "flush" in features or "zero" not in features:
        return None
    code = "cannot_flush"
    failure = StorageFailed(": ".join(STORAGE_FAILURES[code]))
    failure.code = code
    return failure


def error_code(response: http.client.HTTPResponse) -> str | None:
    """Return the code of an answer, or that of its status, if there is one."""
    told = response.headers["X-Error-Code"] or ""
    return told if re.fullmatch("[a-z_]{1,64}", told) else CODES.get(response.status)


def retry_after(response: http.client.HTTPResponse) -> float | None:
    """Return the seconds of Retry-After (RFC 9110 10.2.3), or None without the field or for a date."""
    text = response.headers["Retry-After"] or ""
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else None


def client_refused(peer: str, error: Exception) -> ServerFailed | None:
    """Return the error for a server that wants a certificate of its client, if that is what has failed.

    The server says so by an alert of TLS (RFC 8446 6.2), which OpenSSL reports as EPROTO with its own words.
    """
    reason = str(getattr(error, "strerror", None) or "")
    alert = _ALERT.search(reason) if getattr(error, "errno", None) == errno.EPROTO else None
    if alert is None:
        return None
    if alert[1] == "certificate required":
        return ServerFailed(f"{peer} wants a certificate of its clients: --cert FILE, and --key FILE for its key")
    if alert[1] == "handshake failure":
        text = f"{peer} ends the TLS handshake: it may want a certificate of its clients (--cert FILE)"
        return ServerFailed(f"{text}, or has no protocol or cipher in common with this host")
    return ServerFailed(
        f"{peer} does not take the certificate of --cert ({alert[1]}): it has to be signed by an authority that the "
        "server trusts for its clients, and be in force"
    )


def not_connected(way: str, error: OSError, *, was_connected: bool) -> ServerFailed:
    """Return the error if connecting to a server fails. `way` is its name. `was_connected` tells of earlier success."""
    if refused := client_refused(way, error):
        return refused
    text = f"can't connect to {way}: {error.strerror or error}"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return NothingListens(f"{text}: nothing listens there")
    # If the name was known before, the network is down now, and the name cannot be looked up.
    return ServerFailed(text) if _is_final(error) and not was_connected else Temporary(text)


def _is_final(error: OSError) -> bool:
    """Return whether a retry would fail, too: there is no such host, or a socket's path is too long or not allowed."""
    if isinstance(error, PermissionError):
        return True
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    return error.errno is None and not isinstance(error, TimeoutError)
