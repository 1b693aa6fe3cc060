# SPDX-License-Identifier: Apache-2.0
"""A connection that has ended leaves nothing to the garbage collector, which comes when many have: 256 KiB for each."""

import asyncio
import gc
import ssl
import weakref

import trustme
import uvloop

from imageio_daemon.connectionlimit import ConnectionLimit
from imageio_daemon.frontends.http.app import HttpServer
from imageio_daemon.frontends.http.connection import Connection
from imageio_daemon.frontends.http.messages import Request, Response
from imageio_daemon.frontends.http.routes import Resource, Routes

#: Longest wait for anything that must happen, in seconds.
SOON = 10.0


async def answer(_: Request) -> Response:
    return Response(body=b"hello")


async def ended_connection(fast_lane: bool) -> "weakref.ref[Connection]":
    """Serve one request over TLS and return what is left of its connection."""
    ca = trustme.CA()
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.issue_cert("localhost").configure_cert(ours)
    ca.configure_trust(theirs)
    routes = Routes({"/images/{}": Resource({"GET": answer}, ("GET",))})
    http = HttpServer(routes, inactivity_timeout=SOON, fast_lane=fast_lane, limit=ConnectionLimit(1))
    await http.start()
    made: list[weakref.ref[Connection]] = []

    def connection() -> Connection:
        new = http.connection()
        made.append(weakref.ref(new))
        return new

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0, ssl=ours)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=theirs, server_hostname="localhost")
    writer.write(b"GET /images/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"hello")
    writer.close()
    server.close()
    await http.stop(SOON)  # returns when the connection has ended
    return made[0]


def check_nothing_is_left(*, fast_lane: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        assert uvloop.run(ended_connection(fast_lane))() is None
    finally:
        gc.enable()


def test_tls_connection_of_the_fast_lane() -> None:
    check_nothing_is_left(fast_lane=True)


def test_tls_connection_of_the_aiohttp_lane() -> None:
    check_nothing_is_left(fast_lane=False)
