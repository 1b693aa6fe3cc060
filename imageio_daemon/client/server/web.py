# SPDX-License-Identifier: Apache-2.0
"""A file of any web server, read in order. After a lost connection, reading continues by a range (RFC 9110 14)."""

import contextlib
import http.client
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...urls import hosts
from ..errors import ClientError, LocalError, Refused, ServerFailed, Temporary, Usage
from ..fetched import Fetched
from ..stopping import Stop
from .address import Endpoint, is_image, is_url
from .client_connection import DATA_TIMEOUT
from .failures import LATER, not_connected, retry_after
from .patience import Patience
from .proxy import HttpProxy
from .retries import Retries
from .session import Settings
from .trust import SOURCE_OPTION, Trust

#: Most redirections of one request, as in browsers.
MAX_REDIRECTIONS = 10
REDIRECTIONS = (301, 302, 303, 307, 308)


class _Place(NamedTuple):
    """Where a file is. `target` is path and query, which may have a secret."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, url: str) -> "_Place":
        """Parse a URL. Raises Usage."""
        with contextlib.suppress(ValueError):  # an impossible port or address
            parts = urllib.parse.urlsplit(url)
            host = hosts.decoded(parts.hostname or "")
            port = parts.port or (443 if parts.scheme == "https" else 80)
            target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            is_plain = re.fullmatch("[!-~]+", target) and parts.username is None
            if parts.scheme in ("http", "https") and is_plain and host and hosts.is_host(host):
                return cls(parts.scheme, host, port, target)
        raise Usage("the image must look like https://HOST/PATH, and have no user in it")

    @property
    def shown(self) -> str:
        """Return the URL for messages."""
        default = 443 if self.scheme == "https" else 80
        where = hosts.told(self.host, self.port) if self.port != default else hosts.encoded(self.host)
        return f"{self.scheme}://{where}{self.target.partition('?')[0]}"


class _Version(NamedTuple):
    """Values that show whether a file has changed (RFC 9110 8.8), and its size. A missing value is ""."""

    size: int | None
    etag: str
    modified: str

    @property
    def validator(self) -> str:
        """Return the value for If-Range, or "". A weak tag cannot be used (RFC 9110 13.1.5)."""
        return self.modified if self.etag.startswith("W/") else self.etag or self.modified


class WebFile(Fetched):
    """A file of a web server. Reads are tried again after temporary failures, see Patience. Raises ClientError.

    `cafile` has the trusted authorities; the default is those of the system.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        if is_image(url):
            raise Usage("the image has a ticket of a server: the command copy takes it from one server to another")
        self._told = _Place.parse(url)
        self._place = self._told  # where it was found, after redirections
        self.name = self._told.shown
        self.file_name = urllib.parse.unquote(self._told.target.partition("?")[0].rpartition("/")[2])
        self._settings = settings
        self._stop = Stop()
        self._patience = Patience(self._stop, settings.retry_for, Retries())
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._version: _Version | None = None
        self._position = 0
        self._trying(self._open)
        self.size = None if self._version is None else self._version.size

    def readinto(self, buffer: Any) -> int:
        """Fill a part of the buffer, and return its length, 0 at the end. Raises ClientError."""
        count: int = self._trying(lambda: self._read(memoryview(buffer)))
        self._position += count
        return count

    def stop(self) -> None:
        """Make waiting and later reads raise Stopped."""
        self._stop.stop()

    def close(self) -> None:
        """Disconnect."""
        self._disconnect()
        super().close()

    def _trying(self, function: Any) -> Any:
        while True:
            try:
                try:
                    done = function()
                except (OSError, http.client.HTTPException) as e:
                    self._stop.check()
                    raise Temporary(f"the connection to {self._place.host} broke: {e}") from e
            except Temporary as e:
                self._disconnect()
                self._patience.wait(e)
            except ClientError:
                self._disconnect()
                raise
            else:
                self._patience.succeeded()
                return done

    def _read(self, buffer: memoryview) -> int:
        if self._response is None:
            self._open()
        response = self._response
        count = 0 if response is None else response.readinto(buffer)
        known = self._version.size if self._version else None
        if not count and known is not None and self._position < known and len(buffer):
            raise http.client.IncompleteRead(b"", known - self._position)
        return count

    def _open(self) -> None:
        """Ask for the rest of the file, by a range if some was read."""
        fields = {"Accept-Encoding": "identity", "User-Agent": "imageio-client"}
        if self._position and self._version:
            if not self._version.validator:
                raise LocalError(
                    f"the connection to {self.name} was lost, and its server does not tell whether the file has "
                    "changed meanwhile: start anew"
                )
            fields |= {"Range": f"bytes={self._position}-", "If-Range": self._version.validator}
        response = self._found(fields)
        version = _version_of(response, self._position)
        if self._version is None:
            self._version = version
        elif version != self._version:
            raise LocalError(f"{self.name} has changed while it was read: start anew")
        if response.status == 200:  # a server without ranges
            self._skip(response, self._position)

    def _skip(self, response: http.client.HTTPResponse, count: int) -> None:
        while count:
            data = response.read(min(count, 1024**2))
            if not data:
                raise http.client.IncompleteRead(b"", count)
            count -= len(data)

    def _found(self, fields: Mapping[str, str]) -> http.client.HTTPResponse:
        """Return the answer of the server that has the file.

        First ask where it was found before, because another mirror may have another tag for the same file. If that is
        refused now, such as a signed URL that has expired, begin at the URL that was told.
        """
        try:
            return self._follow(fields)
        except Refused:
            if self._version is None or self._place == self._told:
                raise
        self._place = self._told
        return self._follow(fields)

    def _follow(self, fields: Mapping[str, str]) -> http.client.HTTPResponse:
        """Follow redirections from the present place, and return the answer of the last server."""
        for _ in range(MAX_REDIRECTIONS):
            response = self._ask(self._place, fields)
            if response.status not in REDIRECTIONS:
                return self._accepted(response)
            self._disconnect()
            origin = f"{self._place.scheme}://{hosts.told(self._place.host, self._place.port)}{self._place.target}"
            place = _Place.parse(urllib.parse.urljoin(origin, response.headers["Location"] or ""))
            if self._place.scheme == "https" and place.scheme != "https":
                raise ServerFailed(f"{self.name} redirects to a server without TLS, {place.host}: anybody could answer")
            self._place = place
        raise ServerFailed(f"{self.name} redirects more than {MAX_REDIRECTIONS} times")

    def _ask(self, place: _Place, fields: Mapping[str, str]) -> http.client.HTTPResponse:
        self._disconnect()
        if place.scheme != "https" and not self._settings.insecure:
            raise Usage("with http:// anybody on the way can change the image: https://, or --insecure for tests")
        trust = Trust.of(self._settings.source_cafile, (), insecure=False) if place.scheme == "https" else None
        tls = trust and replace(trust, option=SOURCE_OPTION)
        proxy = HttpProxy.of(place.host, os.environ) if tls else None
        endpoint = Endpoint(hosts.told(place.host, place.port), place.host, place.port, tls=tls, proxy=proxy)
        connection = http.client.HTTPConnection(place.host, place.port)
        try:
            connection.sock = self._socket = endpoint.connect()
            self._connection = connection
            self._stop.add(self._socket)
            endpoint.shake_hands(self._socket)
        except OSError as e:
            self._stop.check()
            raise not_connected(endpoint.way, e, was_connected=self._version is not None) from e
        self._socket.settimeout(DATA_TIMEOUT)
        connection.request("GET", place.target, headers={"Host": hosts.told(place.host, place.port), **fields})
        self._response = connection.getresponse()
        return self._response

    def _accepted(self, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        status = response.status
        if status in (200, 206):
            return response
        text = f"{self.name}: {status} {''.join(filter(str.isprintable, response.reason))[:100]}".rstrip()
        if status >= 500 or status in LATER:
            raise Temporary(text, status, retry_after(response))
        if status >= 400:
            raise Refused(text, status)
        raise ServerFailed(f"{text}: that is no file")

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
        if self._connection is not None:
            self._stop.discard(self._socket)
            self._connection.close()
            self._connection = None


def _version_of(response: http.client.HTTPResponse, position: int) -> _Version:
    """Return the version of the file from an answer. Raises ServerFailed for another range than asked for."""
    etag, modified = response.headers["ETag"] or "", response.headers["Last-Modified"] or ""
    if response.status == 200:
        return _Version(response.length, etag, modified)
    told = re.fullmatch(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})", response.headers["Content-Range"] or "")
    if told is None or int(told[1]) != position:
        raise ServerFailed("the web server sent another range than asked for")
    return _Version(int(told[2]), etag, modified)


def shown(url: str) -> str:
    """Return the URL of a file for messages, without its query, which may have a secret. Raises Usage."""
    return _Place.parse(url).shown


@contextlib.contextmanager
def fetched(source: Any, settings: Settings) -> Iterator[Any]:
    """Yield a source for the code that opens images: for a URL, the file there. Raises ClientError."""
    if not (isinstance(source, str) and is_url(source)):
        yield source
        return
    with contextlib.closing(WebFile(source, settings)) as file:
        yield file
