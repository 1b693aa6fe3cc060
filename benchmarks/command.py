# SPDX-License-Identifier: Apache-2.0
"""What the programs of the benchmarks share: how they end."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable

from benchmarks.errors import BenchmarkError


def run_program(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], None]) -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and loop devices end with us
    try:
        measure(options)
    except (BenchmarkError, subprocess.TimeoutExpired) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
