# SPDX-License-Identifier: Apache-2.0
"""`python -m imageio_daemon.checks DIR [PATH…]`: print each finding as a JSON object, for imageioctl."""

import json
import sys
from pathlib import Path

from .run import check


def main() -> None:
    """Print the findings, and end with status 0 whatever they are."""
    for finding in check(Path(sys.argv[1]), sys.argv[2:]):
        print(json.dumps(finding._asdict()))


if __name__ == "__main__":
    main()
