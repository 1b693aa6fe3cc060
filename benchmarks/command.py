# SPDX-License-Identifier: Apache-2.0
"""What the programs of the benchmarks share: options, and how they end."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.report import DOCUMENT
from benchmarks.servers import PROJECT


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the images are, and where the results go."""
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(os.environ.get("TMPDIR", "/var/tmp")),
        help="where the images are (default: $TMPDIR or /var/tmp)",
    )
    parser.add_argument("--output", type=Path, default=PROJECT / "build/bench", help="where results go")
    parser.add_argument("--document", action="store_true", help=f"put the results into {DOCUMENT.relative_to(PROJECT)}")


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
