# SPDX-License-Identifier: Apache-2.0
"""`/ui/`, the page on which people upload and download an image. docs/adr/0040-a-page-for-transfers.md has the reasons.

The page is static and has no secret: the ticket is in the fragment of its address, which browsers do not send.
"""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from ..routes import READ_METHODS, Handler, Resource, preflight

#: The folder with the files of the page. It is not a Python package.
FOLDER = Path(__file__).parent.parent / "page"
INDEX = "index.html"
#: Text in the document that is replaced by the folder of the other files.
PLACE = "{files}"
#: Text in the document that is replaced by the name of the server's operator.
OPERATOR = "{operator}"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: Fields of each answer (Content Security Policy Level 3). They allow scripts, styles and requests of this server only,
#: and nothing inline, so text that gets into the document by mistake is not run. No other page may frame this one.
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
#: A browser asks for the document each time. The addresses of the other files contain the hash of all files, so a file
#: at an address never changes.
DOCUMENT_CACHE = "no-cache"
FILE_CACHE = "public, max-age=31536000, immutable"


class Page:
    """The files of the page, read when this is made. `operator` is the name of the server's operator, or "".

    The address of a file is `/ui/HASH/NAME`, with the hash of all files. The scripts import each other by relative
    names, so a new hash renews all of them together. Raises OSError if a file cannot be read.
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

    handlers: dict[str, Handler] = {"OPTIONS": preflight, "GET": get, "HEAD": get}
    return Resource(handlers, READ_METHODS)
