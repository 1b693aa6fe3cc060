# SPDX-License-Identifier: Apache-2.0
"""A daemon in which C serves at most two connections of HTTP at a time."""

import sys

from imageio_daemon import cli
from imageio_daemon.lanes import shared

if __name__ == "__main__":
    shared.HTTP_LANES = 2
    sys.exit(cli.main())
