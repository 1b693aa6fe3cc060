# SPDX-License-Identifier: Apache-2.0
"""A file of any web server, read in order. After a lost connection, reading continues by a range (RFC 9110 14)."""

import contextlib
import http.client
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

from ...urls import hosts
from ..errors import ClientError, LocalError, Refused, ServerFailed, Temporary, Usage
from ..fetched import Fetched
from ..stopping import Stop
from .address import HttpUrl, is_image, is_url, server_of
from .client_connection import ClientConnection
from .failures import LATER, retry_after
from .patience import Patience
from .retries import Retries
from .session import Settings
from .trust import SOURCE_OPTION, Trust

#: Most redirections of one request, as in browsers.
MAX_REDIRECTIONS = 10
REDIRECTIONS = (301, 302, 303, 307, 308)

_T = TypeVar("_T")


class FileUrl(HttpUrl):
    """The URL of a file. `path` may have a secret in its query."""

    @classmethod
    def parse(cls, text: str, base: str = "") -> Self:
        """Parse a URL, which may be relative to another one (RFC 3986 5). Raises Usage."""
        with contextlib.suppress(ValueError):  # an impossible port or address
            parts = urllib.parse.urlsplit(urllib.parse.urljoin(base, text))
            path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            server = server_of(parts)
            if server and re.fullmatch("[!-~]+", path):
                return cls(parts.scheme, *server, path)
        raise Usage("the image must look like https://HOST/PATH, and have no user in it")

    @property
    def origin(self) -> str:
        """Return the URL of the server."""
        default = 443 if self.scheme == "https" else 80
        where = hosts.told(self.host, self.port) if self.port != default else hosts.encoded(self.host)
        return f"{self.scheme}://{where}"

    @property
    def shown(self) -> str:
        """Return the URL for messages, without its query, which may have a secret."""
        return self.origin + self.path.partition("?")[0]


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

    `source_cafile` of the settings has the trusted authorities; the default is those of the system.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        if is_image(url):
            raise Usage("the image has a ticket of a server: the command copy takes it from one server to another")
        self._told = FileUrl.parse(url)
        self.name = self._told.shown
        self.file_name = urllib.parse.unquote(self._told.path.partition("?")[0].rpartition("/")[2])
        self._settings = settings
        self._stop = Stop()
        self._patience = Patience(self._stop, settings.retry_for, Retries())
        self._place = self._told  # where it was found, after redirections
        self._connection = self._connection_to(self._told)
        self._response: http.client.HTTPResponse | None = None
        self._version: _Version | None = None
        self._position = 0
        self._response = self._repeated(self._open)
        self.size = None if self._version is None else self._version.size

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end. Raises ClientError."""
        data = self._repeated(lambda: self._read(size))
        self._position += len(data)
        return data

    def stop(self) -> None:
        """Make waiting and later reads raise Stopped."""
        self._stop.stop()

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _repeated(self, function: Callable[[], _T]) -> _T:
        while True:
            try:
                done = function()
            except ClientError as e:
                self._connection.close()
                self._response = None
                if not isinstance(e, Temporary):
                    raise
                self._patience.wait(e)
            else:
                self._patience.succeeded()
                return done

    def _read(self, size: int) -> bytes:
        self._response = self._response or self._open()
        with self._connection.translated():
            data = self._response.read(size)
            known = self._version.size if self._version else None
            if not data and size and known is not None and self._position < known:
                raise http.client.IncompleteRead(b"", known - self._position)
            return data

    def _open(self) -> http.client.HTTPResponse:
        """Ask for the rest of the file, by a range if some was read. Return the answer."""
        fields = {"User-Agent": "imageio-client"}
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
            with self._connection.translated():
                _skip(response, self._position)
        return response

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
        self._turn_to(self._told)
        return self._follow(fields)

    def _follow(self, fields: Mapping[str, str]) -> http.client.HTTPResponse:
        """Follow redirections from the present place, and return the answer of the last server."""
        for _ in range(MAX_REDIRECTIONS):
            response = self._connection.ask(self._place.path, fields)
            if response.status not in REDIRECTIONS:
                return self._accepted(response)
            here = self._place
            place = FileUrl.parse(response.headers["Location"] or "", here.origin + here.path)
            if here.scheme == "https" and place.scheme != "https":
                raise ServerFailed(f"{self.name} redirects to a server without TLS, {place.host}: anybody could answer")
            self._turn_to(place)
        raise ServerFailed(f"{self.name} redirects more than {MAX_REDIRECTIONS} times")

    def _turn_to(self, place: FileUrl) -> None:
        self._connection.close()
        self._place, self._connection = place, self._connection_to(place)

    def _connection_to(self, place: FileUrl) -> ClientConnection:
        """Return a connection that ask() opens. Raises Usage, LocalError."""
        if place.scheme != "https" and not self._settings.insecure:
            raise Usage("with http:// anybody on the way can change the image: https://, or --insecure for tests")
        trust = Trust.of(self._settings.source_cafile, (), insecure=False) if place.scheme == "https" else None
        endpoint = place.endpoint(trust and replace(trust, option=SOURCE_OPTION))
        return ClientConnection(endpoint, self._stop, secret=place.path.partition("?")[2])

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


def _skip(response: http.client.HTTPResponse, count: int) -> None:
    while count:
        data = response.read(min(count, 1024**2))
        if not data:
            raise http.client.IncompleteRead(b"", count)
        count -= len(data)


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
    return FileUrl.parse(url).shown


@contextlib.contextmanager
def fetched(source: Any, settings: Settings) -> Iterator[Any]:
    """Yield a source for the code that opens images: for a URL, the file there. Raises ClientError."""
    if not (isinstance(source, str) and is_url(source)):
        yield source
        return
    with contextlib.closing(WebFile(source, settings)) as file:
        yield file
