# SPDX-License-Identifier: Apache-2.0
"""`/ui/`: the page on which people upload and download an image. Why it is so: docs/adr/0040-a-page-for-transfers.md.

The page is static and has no secret: the ticket is in the fragment of its address, which browsers do not send.
"""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from ..routes import Handler, Resource, preflight

#: The files of the page: all of its folder. Its name is that of no Python package.
FOLDER = Path(__file__).parent.parent / "page"
INDEX = "index.html"
#: In the document, what the names of the other files begin with.
PLACE = "{files}"
#: And where the name of who runs the server is.
OPERATOR = "{operator}"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: Fields of each answer. Scripts, styles and requests are of this server only; nothing is inline, so text that gets
#: into the document by a mistake is not run. No frame of another page may have it (Content Security Policy Level 3).
SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: The document is asked for each time, and names the others with the hash of all, so that they never change.
DOCUMENT_CACHE = "no-cache"
FILE_CACHE = "public, max-age=31536000, immutable"

_METHODS = ("OPTIONS", "GET")


class Page:
    """The files of the page, read when it is made. operator: who runs the server, "" if nobody says. Raises OSError.

    The scripts import each other by relative names, so that one folder of the address, the hash of all files, renews
    them all together: `/ui/HASH/NAME`.
    """

    def __init__(self, operator: str) -> None:
        files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
        digest = hashlib.sha256()
        for name, content in files.items():
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        self.version = digest.hexdigest()[:16]
        document = files.pop(INDEX).decode().replace(PLACE, self.version)
        self._document = document.replace(OPERATOR, html.escape(operator)).encode()
        self._files = files

    def resources(self) -> Mapping[str, Resource]:
        """Return the resources by path. A page of another origin may use none of them."""
        found = {"/ui/": _resource(self._document, INDEX, DOCUMENT_CACHE)}
        for name, content in self._files.items():
            found[f"/ui/{self.version}/{name}"] = _resource(content, name, FILE_CACHE)
        return found


def _resource(content: bytes, name: str, cache: str) -> Resource:
    fields = {"Content-Type": TYPES[Path(name).suffix], "Cache-Control": cache, **SAFE}

    async def get(_: web.Request) -> web.Response:
        return web.Response(headers=fields, body=content)

    handlers: dict[str, Handler] = {"OPTIONS": preflight(_METHODS), "GET": get, "HEAD": get}
    return Resource(handlers, _METHODS)
