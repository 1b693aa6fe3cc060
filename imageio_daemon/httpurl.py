# SPDX-License-Identifier: Apache-2.0
"""Where an image of another server of the images API is: https://host:port/images/id."""

import re
from dataclasses import dataclass, field

from .errors import InvalidRequest
from .hostnames import is_host

SCHEMES = ("https", "http")

_URL = re.compile(
    r"https?://"
    r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
    r"/images/(?P<id>[A-Za-z0-9._~!$&'()*+,;=:@%-]+)"
)
DEFAULT_PORT = 443


@dataclass(frozen=True)
class HttpAddress:
    """Name an image of another server. Its text leaves out the id, which is that server's ticket: a secret."""

    host: str
    port: int
    ticket_id: str = field(repr=False)  # percent-encoded

    @property
    def url(self) -> str:
        """Return the url to ask, with the secret; always with TLS: no server has an image service without it."""
        return f"https://{self.host}:{self.port}/images/{self.ticket_id}"

    def __str__(self) -> str:
        return f"https://{self.host}:{self.port}/images/..."


def is_http(url: str) -> bool:
    """Tell whether the url is for another server of the images API."""
    return url.partition(":")[0] in SCHEMES


def parse(url: str) -> HttpAddress:
    """Return what a url names: no user, query or fragment. Raises InvalidRequest, without the secret."""
    match = _URL.fullmatch(url)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536 or not is_host(match["host"].strip("[]")):
        raise InvalidRequest("Invalid https url: expected https://host:port/images/id")
    return HttpAddress(match["host"], port, match["id"])
