# SPDX-License-Identifier: Apache-2.0
"""What a connection knows of its client."""

import asyncio
import os
import resource
import socket

from imageio_daemon.frontends.http.connection.transport import ClientTransport


async def test_caller_is_known_where_no_descriptor_is_left() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, theirs)
        client = ClientTransport(transport)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            caller = client.caller
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caller == {"uid": os.geteuid(), "pid": os.getpid()}
        assert not transport.is_closing()
        transport.abort()
