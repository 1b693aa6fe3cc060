# SPDX-License-Identifier: Apache-2.0
"""A daemon that waits only a moment for another server."""

import sys

from imageio_daemon import cli
from imageio_daemon.frontends.http.proxy import body, way

MOMENT = 0.5

if __name__ == "__main__":
    vars(way)["CONNECT_TIMEOUT"] = vars(way)["ANSWER_TIMEOUT"] = vars(body)["DATA_TIMEOUT"] = MOMENT
    sys.exit(cli.main())
