# SPDX-License-Identifier: Apache-2.0
"""A daemon for which a request is slow after a short time."""

import sys

from imageio_daemon import cli
from imageio_daemon.lanes import records
from imageio_daemon.runtime import request_log

if __name__ == "__main__":
    request_log.SLOW = 0.3
    records.LOOK = 0.05
    sys.exit(cli.main())
