# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/client.md do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from imageio_daemon.client import errors
from tests.docs.examples import check, sections
from tests.support.commands import install
from tests.support.daemon import PROJECT, Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.tls import pin_of

PAGE = PROJECT / "docs" / "client.md"
SECTIONS = sections(PAGE.read_text())
UPLOAD = SECTIONS["Upload"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with the image of the page, and the command in its PATH."""
    disk = tmp_path / "disk.raw"
    disk.write_bytes(pattern(2 * MiB))
    os.truncate(disk, 64 * MiB)
    install(tmp_path / "bin")
    return tmp_path


@pytest.mark.parametrize("heading", SECTIONS)
def test_examples(daemon: Daemon, work: Path, heading: str) -> None:
    examples = SECTIONS[heading] if heading == "Upload" else [*UPLOAD[:3], *SECTIONS[heading]]
    environment = {
        "CONTROL": daemon.control_socket,
        "IMAGES": f"https://localhost:{daemon.port}/images",
        "CA": str(daemon.cafile),
        "PIN": pin_of(daemon.certificates.certfile),
        "PATH": f"{work}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
    }
    check(PAGE, examples, work, environment, timeout=100)


def test_program_of_the_page(daemon: Daemon, work: Path, new_image: MakeImage) -> None:
    program = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    target = new_image(size=64 * MiB, sparse=True)
    result = subprocess.run(
        [sys.executable, "-c", program, daemon.url(target.ticket), str(daemon.cafile)],
        cwd=work,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert result.stdout.endswith(" bytes sent over 4 connections\n")
    assert target.read(0, 2 * MiB) == pattern(2 * MiB)


def test_program_with_an_open_image(daemon: Daemon, new_image: MakeImage) -> None:
    program = PAGE.read_text().rpartition("```python\n")[2].partition("```")[0]
    target = new_image(pattern(MiB), sparse=True)
    result = subprocess.run(
        [sys.executable, "-c", program, daemon.url(target.ticket), str(daemon.cafile)],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert result.stdout == "the first sector of 1048576 bytes; 2 extents\n"
    assert target.content() == b"the first sector".ljust(512) + bytes(MiB - 512)


def test_page_has_all_statuses() -> None:
    told = {int(status) for status in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ClientError)]
    assert told == {0, 129, 130, 143} | {kind.status for kind in kinds}
