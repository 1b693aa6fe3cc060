# SPDX-License-Identifier: Apache-2.0
"""The daemon, in a hurry to have C serve: a plain request for an open image goes to C, even a connection's first.

Most tests send one request or two on a connection, which Python would serve: it lends no connection before it has seen
a plain request. Nothing else differs. The log tells how many requests C has served, and which it could
have served and did not see.
"""

import contextlib
import logging
import sys

from imageio_daemon import cli
from imageio_daemon.errors import Error
from imageio_daemon.frontends.http import connection, lending
from imageio_daemon.frontends.http.express import plain_target
from imageio_daemon.frontends.http.framing import Head
from imageio_daemon.frontends.http.wire import Wire
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.lanehttp import HttpLane
from imageio_daemon.tickets import Access
from imageio_daemon.transfers import Transfer

log = logging.getLogger(__name__)

_METHODS = {"GET": Access.READ, "PUT": Access.WRITE, "PATCH": Access.WRITE}


class EagerLender(lending.Lender):
    """Let no plain request pass by C but what C gave back."""

    def __init__(self, lender: lending.Lending | None, line: lending.LentLine) -> None:
        super().__init__(lender, line)
        self._wait = 0

    def lend(self, head: Head, received: bytes | bytearray, wire: Wire) -> bool:
        """Lend the connection if C can have it, otherwise try again with the next request."""
        given_back = self._wait > 0
        lent = super().lend(head, received, wire)
        if not lent:
            self._wait = 0
            if not given_back and wire.can_be_lent:
                self._tell_missed(head)
        return lent

    def _tell_missed(self, head: Head) -> None:
        """Log that C should have had a request, unless it is none for C, or is refused."""
        target = plain_target(head)
        if target is None or self._lending is None or head.method not in _METHODS:
            return
        with contextlib.suppress(Error):
            image = self._lending._store.authorize(target[0], _METHODS[head.method]).opened
            if image is None or isinstance(image, FileBackend):
                log.info("lane missed a request: %s", "the image is not open" if image is None else head.method)

    def _ended(self, lane: HttpLane, transfer: Transfer) -> None:
        log.info("lane served %d requests", lane.stats.requests)
        rest = lane.end().rest
        super()._ended(lane, transfer)
        if not rest:
            self._wait = 0


def hurry() -> None:
    """Have all connections of this process served so."""
    lending.NEXT_WAIT = 1
    vars(connection)["Lender"] = EagerLender


if __name__ == "__main__":
    hurry()
    sys.exit(cli.main())
