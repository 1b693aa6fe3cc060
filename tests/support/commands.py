# SPDX-License-Identifier: Apache-2.0
"""The commands of this project: their installation, their results, and the options in their manual pages."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULES = {
    "imageio-daemon": "imageio_daemon",
    "imageio-client": "imageio_daemon.client.cli",
    "imageioctl": "imageio_daemon.control.cli",
}


def install(directory: Path) -> None:
    """Make a directory with the commands, for PATH. PYTHONPATH has to name this project."""
    directory.mkdir()
    for name, module in MODULES.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)


@dataclass(frozen=True)
class Result:
    """The exit status and the output of a command."""

    program: str
    status: int
    out: str
    err: str

    def failed_with(self, pattern: str, status: int) -> None:
        """Check that the command failed with one line that matches, and nothing else."""
        assert self.status == status, self
        assert re.fullmatch(f"{self.program}: [^\n]*(?:{pattern})[^\n]*\n", self.err), self

    def json(self) -> list[dict[str, Any]]:
        """Return the objects that were printed."""
        assert self.status == 0, self
        return [json.loads(line) for line in self.out.splitlines()]


def commands(start: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield all commands below one, by their whole names."""
    for action in start._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from commands(command, f"{name} {word}".strip())
            return
    yield name, start


def man_page(path: Path) -> dict[str, set[str]]:
    """Return the options that the page has for each command."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in path.read_text().splitlines():
        plain = re.sub(r"\\f.", "", line).replace("\\-", "-")
        if line.startswith(".SS "):
            name = line[4:].strip().strip('"')
            found[name] = set()
        elif line.startswith(".SH "):
            name = ""
        elif plain.startswith("-"):
            found.setdefault(name, set()).update(re.findall(r"--[a-z-]+", plain))
    return found
