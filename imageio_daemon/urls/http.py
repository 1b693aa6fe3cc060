# SPDX-License-Identifier: Apache-2.0
"""URLs of images on another server of the images API: https://host:port/images/id."""

import re
from dataclasses import dataclass, field

from ..errors import InvalidRequest
from .hosts import is_host

SCHEMES = ("https", "http")

_URL = re.compile(
    r"https?://"
    r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
    r"/images/(?P<id>[A-Za-z0-9._~!$&'()*+,;=:@%-]+)"
)
DEFAULT_PORT = 443


@dataclass(frozen=True)
class HttpAddress:
    """The address of an image on another server. str() omits the id: it is the other server's ticket, a secret."""

    host: str
    port: int
    ticket_id: str = field(repr=False)  # percent-encoded

    @property
    def url(self) -> str:
        """Return the URL for requests, with the secret. Always https: the image service of a server needs TLS."""
        return f"https://{self.host}:{self.port}/images/{self.ticket_id}"

    def __str__(self) -> str:
        return f"https://{self.host}:{self.port}/images/..."


def is_http(url: str) -> bool:
    """Tell whether the URL has a scheme of the images API."""
    return url.partition(":")[0] in SCHEMES


def parse(url: str) -> HttpAddress:
    """Parse a URL, which must have no user, query or fragment. Raises InvalidRequest; the message has no secret."""
    match = _URL.fullmatch(url)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536 or not is_host(match["host"].strip("[]")):
        raise InvalidRequest("Invalid https url: expected https://host:port/images/id")
    return HttpAddress(match["host"], port, match["id"])
