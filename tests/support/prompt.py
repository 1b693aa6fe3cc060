# SPDX-License-Identifier: Apache-2.0
"""A daemon whose periodic checks, usually every two to ten seconds, run almost at once."""

import sys

from imageio_daemon import cli
from imageio_daemon.lifecycle import supervision, watching
from imageio_daemon.runtime import state

#: Seconds between two checks.
INTERVAL = 0.1

if __name__ == "__main__":
    supervision.STATUS_INTERVAL = INTERVAL
    watching.DEGRADED_INTERVAL = watching.EXPIRY_INTERVAL = INTERVAL
    state.PROBE_INTERVAL = INTERVAL
    sys.exit(cli.main())
