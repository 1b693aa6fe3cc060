# SPDX-License-Identifier: Apache-2.0
"""The daemon that looks at itself and its host often: what takes it up to ten seconds is done at once."""

import sys

from imageio_daemon import cli
from imageio_daemon.lifecycle import supervision, watching
from imageio_daemon.runtime import state

#: Seconds between two looks.
INTERVAL = 0.1

if __name__ == "__main__":
    supervision.STATUS_INTERVAL = INTERVAL
    watching.DEGRADED_INTERVAL = watching.EXPIRY_INTERVAL = INTERVAL
    state.PROBE_INTERVAL = INTERVAL
    sys.exit(cli.main())
