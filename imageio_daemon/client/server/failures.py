# SPDX-License-Identifier: Apache-2.0
"""What the answers of a server that refuses or fails mean, and what to do then."""

import errno
import http.client
import re
import socket
from collections.abc import Collection

from ..errors import ClientError, NoDecoder, NoRoom, NothingListens, Refused, ServerFailed, StorageFailed, Temporary

#: Statuses below 500 of servers and proxies that ask for a later try (RFC 9110 15.5.9, RFC 6585 4).
LATER = (408, 429)

#: By status, of refusals that have no words below.
EXPLANATIONS = {
    403: ("the ticket does not allow this", "it may have expired, ask for a new one"),
    404: ("not found", "is this the URL of an image?"),
    409: ("something else has the image", "try again when that has ended"),
    416: ("the image does not fit into the target", "make the target larger"),
}
#: The same by code (docs/images-api.md, errors).
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


#: By status, of answers without a code: imageio-daemon gives none of these without one, so a proxy has answered for it
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

#: The alerts of servers that want another certificate of their clients, or any, as OpenSSL tells them.
_ALERT = re.compile(
    "alert (certificate required|unknown ca|bad certificate|unsupported certificate|handshake failure|"
    "certificate (?:expired|revoked|unknown))"
)
NO_ROOM = "storage_full"
#: Codes of failures that a retry does not mend (docs/images-api.md, errors): what it is, and what to do.
STORAGE_FAILURES = {
    NO_ROOM: ("the storage of the image is full", "make room there, and repeat the command"),
    "storage_permission": (
        "the server has no access to the image",
        "its administrator finds the file and the reason in the log of the server",
    ),
    "storage_gone": ("the image is gone from the server", "is its storage mounted? The log of the server has its path"),
    "cannot_flush": ("the server cannot put the image on stable storage", "it needs a ticket for another NBD server"),
}
#: The code of a failure that a body without its coding does not have.
NO_DECODER = "too_many_decoders"
#: The code of a status that says the same, for servers without codes (RFC 4918 11.5).
CODES = {507: NO_ROOM}


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
    """Return the error for an upload to a server that tells that it writes and cannot flush; None: it can."""
    if "flush" in features or "zero" not in features:
        return None
    code = "cannot_flush"
    failure = StorageFailed(": ".join(STORAGE_FAILURES[code]))
    failure.code = code
    return failure


def error_code(response: http.client.HTTPResponse) -> str | None:
    """Return the code of an answer, or that of its status; None: it has none."""
    told = response.headers["X-Error-Code"] or ""
    return told if re.fullmatch("[a-z_]{1,64}", told) else CODES.get(response.status)


def retry_after(response: http.client.HTTPResponse) -> float | None:
    """Return the seconds of Retry-After (RFC 9110 10.2.3); None without it, and for a date."""
    text = response.headers["Retry-After"] or ""
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else None


def client_refused(peer: str, error: Exception) -> ServerFailed | None:
    """Return the error for a server that wants a certificate of its client; None: that is not what has failed.

    It says so by an alert of TLS (RFC 8446 6.2), for which OpenSSL has words of its own, with EPROTO.
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
    """Return the error for a server that cannot be connected to. way: its name. was_connected: it was, before."""
    if refused := client_refused(way, error):
        return refused
    text = f"can't connect to {way}: {error.strerror or error}"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return NothingListens(f"{text}: nothing listens there")
    # A name that was known is one that nobody can be asked for while the network is away.
    return ServerFailed(text) if _is_final(error) and not was_connected else Temporary(text)


def _is_final(error: OSError) -> bool:
    """Tell whether a retry would fail, too: no such host, a socket's path is too long, or this user may not use it."""
    if isinstance(error, PermissionError):
        return True
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    return error.errno is None and not isinstance(error, TimeoutError)
