# SPDX-License-Identifier: Apache-2.0
"""URLs of images on another server of the images API: https://host:port/images/id."""

import contextlib
import re
from dataclasses import dataclass, field

from ..errors import InvalidRequest
from .hosts import decoded, encoded, is_host

SCHEMES = ("https", "http")

_URL = re.compile(
    r"https?://"
    r"(?:(?P<name>[A-Za-z0-9._-]{1,254})|\[(?P<ipv6>[0-9A-Fa-f:.]{2,45}(?:%25[A-Za-z0-9._~%-]{1,48})?)\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"/images/(?P<id>[A-Za-z0-9._~!$&'()*+,;=:@%-]+)"
)
DEFAULT_PORT = 443


@dataclass(frozen=True)
class HttpAddress:
    """The address of an image on another server. str() omits the id: it is the other server's ticket, a secret.

    The host is a name or an address, which may have a zone; see hosts.py.
    """

    host: str
    port: int
    ticket_id: str = field(repr=False)  # percent-encoded

    @property
    def url(self) -> str:
        """Return the URL, with the secret. Always https: the image service of a server needs TLS."""
        return f"https://{encoded(self.host)}:{self.port}/images/{self.ticket_id}"

    @property
    def url_to_connect(self) -> str:
        """Return the URL as libraries take it, which look a zone up as it stands."""
        return f"https://{encoded(self.host).replace('%25', '%', 1)}:{self.port}/images/{self.ticket_id}"

    def __str__(self) -> str:
        return f"https://{encoded(self.host)}:{self.port}/images/..."


def is_http(url: str) -> bool:
    """Return whether the URL has a scheme of the images API."""
    return url.partition(":")[0] in SCHEMES


def parse(url: str) -> HttpAddress:
    """Parse a URL, which must have no user, query or fragment. Raises InvalidRequest; the message has no secret."""
    if (match := _URL.fullmatch(url)) is not None:
        with contextlib.suppress(ValueError):  # a zone that is not UTF-8
            host, port = match["name"] or decoded(match["ipv6"]), int(match["port"] or DEFAULT_PORT)
            if 0 < port < 65536 and is_host(host):
                return HttpAddress(host, port, match["id"])
    raise InvalidRequest("Invalid https url: expected https://host:port/images/id")
