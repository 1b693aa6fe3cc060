# SPDX-License-Identifier: Apache-2.0
"""The daemon, with places for two connections of HTTP that C serves."""

import sys

from imageio_daemon import cli
from imageio_daemon.lanes import shared

if __name__ == "__main__":
    shared.HTTP_LANES = 2
    sys.exit(cli.main())
