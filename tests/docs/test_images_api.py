# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/images-api.md do what the page says."""

import shutil
from pathlib import Path

import pytest

from tests.docs.examples import check, sections
from tests.support.daemon import Daemon
from tests.support.images import MiB, pattern

PAGE = Path(__file__).resolve().parents[2] / "docs" / "images-api.md"


SECTIONS = sections(PAGE.read_text())
PRELUDE, *OTHERS = SECTIONS


@pytest.mark.unopened
@pytest.mark.parametrize("heading", OTHERS)
def test_examples(daemon: Daemon, tmp_path: Path, heading: str) -> None:
    if shutil.which("xxd") is None and any("xxd" in example.command for example in SECTIONS[heading]):
        pytest.skip("xxd is not installed")
    disk = tmp_path / "disk.raw"
    disk.write_bytes(pattern(MiB))
    examples = [*SECTIONS[PRELUDE], *SECTIONS["Write: PUT /images/ID"][:1], *SECTIONS[heading]]
    environment = {
        "CONTROL": daemon.control_socket,
        "LOCAL": daemon.local_socket,
        "IMAGES": f"https://localhost:{daemon.port}",
        "CURL_CA_BUNDLE": str(daemon.cafile),
        "DISK": str(disk),
    }
    check(PAGE, examples, tmp_path, environment)
