# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the image servers that engines write: it connects to the NBD server anew.

/usr/bin/python3 -P benchmarks/anew.py NBD-URI CERTIFICATE KEY piece|request

It is no product's code. It does what is known of such servers, and nothing else that would take time: Python's
threading HTTP server, a thread for each connection, TLS, and libnbd, which reads 256 KiB at a time and waits for each.
piece: a new NBD connection for the size, and for each 256 KiB. request: one for each request of HTTP. Prints its port.
"""

import contextlib
import re
import ssl
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import nbd

PIECE = 256 * 1024

URI, CERTIFICATE, KEY, ANEW = sys.argv[1:5]


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Connect to the NBD server."""
    handle = nbd.NBD()
    handle.connect_uri(URI)
    yield handle
    handle.shutdown()


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_OPTIONS(self) -> None:
        """Tell nothing that matters here."""
        self._head(200, 2)
        self.wfile.write(b"{}")

    def do_GET(self) -> None:
        """Answer a range."""
        with contextlib.ExitStack() as stack:
            handle = stack.enter_context(connected())
            size = handle.get_size()
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{size - 1}"))
            assert match is not None
            start, end = int(match[1]), min(int(match[2]) + 1, size)
            self._head(206, end - start)
            for at in range(start, end, PIECE):
                if ANEW == "piece":
                    stack.close()
                    handle = stack.enter_context(connected())
                self.wfile.write(handle.pread(min(PIECE, end - at), at))

    def _head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until the process is ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
