# SPDX-License-Identifier: Apache-2.0
"""A connection that has ended leaves nothing to the garbage collector, which comes when many have: 256 KiB for each."""

import asyncio
import gc
import ssl
import weakref

import trustme
import uvloop
from aiohttp import web

from imageio_daemon.frontends.http.connection.connection import ServerConnection
from imageio_daemon.frontends.http.routes import Resource, Routes
from imageio_daemon.frontends.http.server import HttpServer
from imageio_daemon.net.connection_limit import ConnectionLimit

#: Longest wait for anything that must happen, in seconds.
SOON = 10.0


async def answer(_: web.Request) -> web.Response:
    return web.Response(body=b"hello")


async def ended_connection() -> "weakref.ref[ServerConnection]":
    """Serve one request over TLS and return what is left of its connection."""
    ca = trustme.CA()
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.issue_cert("localhost").configure_cert(ours)
    ca.configure_trust(theirs)
    routes = Routes({"/images/{}": Resource({"GET": answer}, ("GET",))})
    http = HttpServer(routes, inactivity_timeout=SOON, limit=ConnectionLimit(1))
    await http.start()
    made: list[weakref.ref[ServerConnection]] = []

    def connection() -> ServerConnection:
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


def test_connection_of_tls() -> None:
    gc.collect()
    gc.disable()
    try:
        assert uvloop.run(ended_connection())() is None
    finally:
        gc.enable()
