# SPDX-License-Identifier: Apache-2.0
"""A daemon that logs the requests that C could have served and did not get."""

import contextlib
import logging
import sys
from collections.abc import Callable

from imageio_daemon import cli
from imageio_daemon.errors import Error
from imageio_daemon.frontends.http.connection import connection, handover, lane_service
from imageio_daemon.frontends.http.connection.framing import RequestHead
from imageio_daemon.lanes.http import HttpEnd
from imageio_daemon.transfers.ticket import Access

log = logging.getLogger(__name__)

_METHODS = {"GET": Access.READ, "PUT": Access.WRITE, "PATCH": Access.WRITE}


class ToldHandover(handover.LaneHandover):
    """Log the requests that C should have got."""

    def begin(self, head: RequestHead, received: bytes | bytearray, returned: Callable[[HttpEnd], None]) -> bool:
        """Hand the connection over if C can serve it."""
        given_back = self._given_back
        begun = super().begin(head, received, returned)
        if not begun and not given_back:
            self._tell_missed(head)
        return begun

    def _tell_missed(self, head: RequestHead) -> None:
        """Log that C should have got a request, unless the request is not for C, or is refused."""
        if not head.plain or self._service is None:
            return
        with contextlib.suppress(Error):
            transfer = self._service._store.authorize(lane_service.ticket_id(head), _METHODS[head.method])
            if transfer.ticket.proxied:
                return
            image = transfer.opened
            if image is None or head.method != "GET" or image.info.size >= transfer.ticket.size:
                log.info("lane missed a request: %s", head.method)


def tell() -> None:
    """Have all connections of this process log such requests."""
    vars(connection)["LaneHandover"] = ToldHandover


if __name__ == "__main__":
    tell()
    sys.exit(cli.main())
