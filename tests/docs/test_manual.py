# SPDX-License-Identifier: Apache-2.0
"""The manual pages can be read."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from imageio_daemon import cli
from tests.support.daemon import PROJECT

PAGES = sorted(PROJECT.joinpath("docs").glob("*.[1-9]"))


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_is_well_formed(page: Path) -> None:
    environment = {"MANWIDTH": "80", "PATH": os.environ["PATH"]}
    command = ["man", "--warnings", "-E", "UTF-8", "-l", str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lstrip().startswith(page.stem.upper())


def test_page_of_the_daemon_has_its_options() -> None:
    page = PROJECT.joinpath("docs/imageio-daemon.8").read_text().replace("\\-", "-")
    options = page.partition(".SH OPTIONS")[2].partition("\n.SH")[0]
    there = {option for action in cli.parser()._actions for option in action.option_strings}
    assert set(re.findall(r"--?[a-z][a-z-]*", options)) & there == there - {"-h", "--help"}
