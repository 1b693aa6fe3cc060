# SPDX-License-Identifier: Apache-2.0
"""The client's connection ends when it is closed, whoever still refers to it."""

import pytest

from imageio_daemon.client import Temporary
from imageio_daemon.client.server.address import Endpoint, ImageUrl
from imageio_daemon.client.server.connection import ClientConnection
from imageio_daemon.client.stopping import Stop
from tests.examples.programs import ScriptedServer, answer, features


def test_connection_is_closed_at_once_after_an_answer_that_is_cut_off() -> None:
    """Its last answer has the descriptor, too, and the error the answer."""
    with ScriptedServer(features(), answer("200 OK", "[]", "Connection: close")[:-1]) as server:
        url = ImageUrl.parse(server.url)
        connection = ClientConnection(Endpoint(url.peer, url.host, url.port), Stop())
        connection.request("OPTIONS", url.path)
        sock = connection._socket
        with pytest.raises(Temporary, match=r"cut the transfer off, [0-9]+ bytes before the end") as error:
            connection.request("GET", url.path)
        assert sock is not None
        assert sock.fileno() == -1
        assert error.tb is not None
