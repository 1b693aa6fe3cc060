# SPDX-License-Identifier: Apache-2.0
"""The part of the images API that the examples use, with nothing but the standard library.

docs/images-api.md describes the requests. Offsets and lengths are in bytes.
"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Iterator
from typing import Any

BUFFER_SIZE = 1024 * 1024

# Longest silence of the server. It answers a flush only when the data is on stable storage, which takes a while when
# gigabytes wait in the page cache of a slow disk.
TIMEOUT = 300

# Longest range of one zero request: writing zeros takes time where the storage can't do it by itself, and each answer
# shows that the server is alive.
MAX_ZERO = 1024**3

MAX_ANSWER = 64 * 1024**2

EXPLANATIONS = {
    403: "the ticket does not allow this",
    404: "not found: is this the URL of an image?",
    416: "the image does not fit into the target",
    503: "the server is busy",
}


class TransferError(Exception):
    """The transfer failed, for a reason that fits in one line."""


@dataclasses.dataclass(frozen=True)
class Extent:
    """A range of an image that is all data or all zeros."""

    start: int
    length: int
    zero: bool


class Image:
    """A connection to the URL of one image."""

    def __init__(self, url: str, *, cafile: str | None, insecure: bool, unix_socket: str | None) -> None:
        parts = split_url(url)
        self._path = parts.path
        self._peer = unix_socket or parts.netloc
        self._connection: http.client.HTTPConnection
        if unix_socket:
            self._connection = UnixConnection(unix_socket)
        elif parts.scheme == "https":
            context = tls_context(cafile, insecure=insecure)
            self._connection = http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT, context=context)
        else:
            self._connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)

    def connect(self) -> None:
        """Connect now, so that a failure to reach the server is not taken for a failure of a request."""
        try:
            self._connection.connect()
        except ssl.SSLCertVerificationError as e:
            reason = f"the certificate of {self._peer} can't be verified: {e.verify_message} (see --cafile)"
            raise TransferError(reason) from e
        except OSError as e:
            raise TransferError(f"can't connect to {self._peer}: {e.strerror or e}") from e

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def features(self) -> set[str]:
        """Ask what this ticket can do."""
        answer = self._json("OPTIONS", self._path)
        if not isinstance(answer, dict) or not isinstance(answer.get("features"), list):
            raise TransferError(f"{self._peer} does not speak the images API")
        return set(answer["features"])

    def write(self, offset: int, length: int, data: Iterator[memoryview]) -> None:
        """Write `length` bytes at `offset`. They are on stable storage after the next flush."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(length),
            "Content-Range": f"bytes {offset}-{offset + length - 1}/*",
        }
        self._request("PUT", f"{self._path}?flush=n", data, headers).read()

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""
        self._patch({"op": "zero", "offset": offset, "size": length, "flush": False})

    def flush(self) -> None:
        """Wait until everything written so far is on stable storage."""
        self._patch({"op": "flush"})

    def extents(self) -> list[Extent]:
        """List the extents of the whole image, in order and without gaps."""
        answer = self._json("GET", f"{self._path}/extents")
        if not isinstance(answer, list):
            raise TransferError(f"{self._peer} sent malformed extents")
        try:
            extents = [Extent(int(item["start"]), int(item["length"]), bool(item["zero"])) for item in answer]
        except (KeyError, TypeError, ValueError) as e:
            raise TransferError(f"{self._peer} sent malformed extents") from e
        end = 0
        for extent in extents:
            if extent.start != end or extent.length < 0:
                raise TransferError(f"{self._peer} sent extents with a gap at byte {end}")
            end += extent.length
        return extents

    def size(self) -> int:
        """Ask for the size of the image, by its first byte: the answer to a range names the size of the whole."""
        response = self._request("GET", self._path, None, {"Range": "bytes=0-0"}, expected=(206, 416))
        response.read()
        total = (response.headers["Content-Range"] or "").partition("/")[2]
        if not total.isdecimal():
            raise TransferError(f"{self._peer} did not tell the size of the image")
        return int(total)

    def read(self, offset: int, length: int) -> Iterator[memoryview]:
        """Read a range piece by piece. A piece is valid until the next one is asked for."""
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        response = self._request("GET", self._path, None, headers)
        sent = (response.headers["Content-Range"] or "").partition("/")[0]
        if sent != f"bytes {offset}-{offset + length - 1}" or response.length != length:
            raise TransferError(f"{self._peer} sent another range than asked for")
        buffer = memoryview(bytearray(BUFFER_SIZE))
        while length:
            try:
                count = response.readinto(buffer[: min(length, BUFFER_SIZE)])
            except OSError as e:
                raise TransferError(f"the connection to {self._peer} broke: {e.strerror or e}") from e
            if count == 0:
                raise TransferError(f"{self._peer} cut the transfer off, {length} bytes before the end of a range")
            yield buffer[:count]
            length -= count
        response.read()

    def _patch(self, operation: dict[str, object]) -> None:
        body = json.dumps(operation).encode()
        self._request("PATCH", self._path, body, {"Content-Type": "application/json"}).read()

    def _json(self, method: str, path: str) -> Any:
        body = self._request(method, path, None, {}).read(MAX_ANSWER)
        try:
            return json.loads(body)
        except ValueError as e:
            raise TransferError(f"{self._peer} answered {method} with something that is not JSON") from e

    def _request(
        self,
        method: str,
        path: str,
        body: Iterator[memoryview] | bytes | None,
        headers: dict[str, str],
        expected: tuple[int, ...] = (200, 206),
    ) -> http.client.HTTPResponse:
        try:
            # A server that refuses a request answers before it has read the body, and then stops reading: whatever
            # went wrong while we sent, the answer tells why.
            with contextlib.suppress(OSError):
                self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            if response.status in expected:
                return response
            reason = response.read(1000).decode(errors="replace").partition("\n")[0]
        except (OSError, http.client.HTTPException) as e:
            raise TransferError(f"the connection to {self._peer} broke: {str(e).strip()}") from e
        explanation = EXPLANATIONS.get(response.status, "the server failed")
        raise TransferError(f"{explanation} ({method}: {response.status} {reason})")


def split_url(url: str) -> urllib.parse.SplitResult:
    """Split the URL of an image, and refuse any other."""
    with contextlib.suppress(ValueError):  # an impossible port or address
        parts = urllib.parse.urlsplit(url)
        image = parts.hostname and parts.port != 0 and parts.path.startswith("/images/")
        if parts.scheme in ("http", "https") and image:
            return parts
    raise TransferError("the URL must look like https://HOST:PORT/images/TICKET")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the unix socket of the daemon's local service; a leading "@" means an abstract name."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self._address)


def tls_context(cafile: str | None, *, insecure: bool) -> ssl.SSLContext:
    """Trust the system's authorities, or those in `cafile` instead, or with `insecure` anyone."""
    try:
        context = ssl.create_default_context(cafile=cafile)
    except OSError as e:
        raise TransferError(f"can't load the certificates in {cafile}: {e.strerror or e}") from e
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what it takes to reach an image."""
    parser.add_argument("--cafile", metavar="FILE", help="trust the authorities in this file, not those of the system")
    parser.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")
    parser.add_argument(
        "--unix-socket", metavar="PATH", help="connect to the local service of this host; @NAME is an abstract socket"
    )


@contextlib.contextmanager
def open_image(url: str, args: argparse.Namespace) -> Iterator[Image]:
    """Connect to an image as the arguments say."""
    image = Image(url, cafile=args.cafile, insecure=args.insecure, unix_socket=args.unix_socket)
    with contextlib.closing(image):
        image.connect()
        yield image
