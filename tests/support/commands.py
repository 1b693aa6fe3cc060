# SPDX-License-Identifier: Apache-2.0
"""The commands of this project as they are installed."""

import sys
from pathlib import Path

MODULES = {
    "imageio-daemon": "imageio_daemon",
    "imageio-client": "imageio_daemon.client.cli",
    "imageioctl": "imageio_daemon.control.cli",
}


def install(directory: Path) -> None:
    """Make a directory that has the commands, for PATH. PYTHONPATH has to name this project."""
    directory.mkdir()
    for name, module in MODULES.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
