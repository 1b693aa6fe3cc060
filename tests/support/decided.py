# SPDX-License-Identifier: Apache-2.0
"""A daemon for which no request is plain. Python decides each request, and C carries it out."""

import sys
from collections.abc import Callable

from imageio_daemon import cli
from imageio_daemon.frontends.http.connection import connection, handover
from imageio_daemon.frontends.http.connection.framing import RequestHead
from imageio_daemon.lanes.http import HttpEnd


class DecidedHandover(handover.LaneHandover):
    """Leave all requests to handlers."""

    def begin(self, head: RequestHead, received: bytes | bytearray, returned: Callable[[HttpEnd], None]) -> bool:
        """Hand no request over."""
        return False


if __name__ == "__main__":
    vars(connection)["LaneHandover"] = DecidedHandover
    sys.exit(cli.main())
