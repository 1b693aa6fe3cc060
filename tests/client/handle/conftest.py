# SPDX-License-Identifier: Apache-2.0
"""A daemon that a test may restart."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.daemon import STATE, Certificates, Daemon


@pytest.fixture
def own(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon that keeps its state, and its port over a restart."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Daemon(certificates, {"daemon": {"state_dir": STATE}, "remote": {"port": port}}) as daemon:
        yield daemon
