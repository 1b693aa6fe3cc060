# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/imageioctl.md do what the page says."""

import os
from pathlib import Path

import pytest

from tests.docs.examples import check, sections
from tests.support.commands import install
from tests.support.daemon import PROJECT, MakeDaemon

PAGE = PROJECT / "docs" / "imageioctl.md"
SECTIONS = sections(PAGE.read_text())


@pytest.mark.parametrize("heading", SECTIONS)
def test_examples(make_daemon: MakeDaemon, tmp_path: Path, heading: str) -> None:
    daemon = make_daemon()  # without the tickets of other tests
    install(tmp_path / "bin")
    environment = {
        "CONTROL": daemon.control_socket,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
    }
    check(PAGE, SECTIONS[heading], tmp_path, environment)
