# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/imageioctl.md do what the page says."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_images_api import as_pattern, sections
from tests.support.commands import install
from tests.support.daemon import PROJECT, MakeDaemon

PAGE = PROJECT / "docs" / "imageioctl.md"
SECTIONS = sections(PAGE.read_text())


@pytest.mark.parametrize("heading", SECTIONS)
def test_examples(make_daemon: MakeDaemon, tmp_path: Path, heading: str) -> None:
    daemon = make_daemon()  # without the tickets of other tests
    install(tmp_path / "bin")
    examples = SECTIONS[heading]
    script = "".join(f"{example.command}\nprintf '<end of %s>' {example.line}\n" for example in examples)
    environment = os.environ | {
        "CONTROL": daemon.control_socket,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
    }
    printed = subprocess.run(
        ["bash", "-u"],
        input=script,
        text=True,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=True,
    ).stdout
    for example in examples:
        output, end, printed = printed.partition(f"<end of {example.line}>")
        assert end, f"{PAGE.name}:{example.line} did not run"
        assert re.fullmatch(as_pattern(example.output), output, re.DOTALL), (
            f"{PAGE.name}:{example.line}: {example.command}\nprinted\n{output}\nand not\n{example.output}"
        )
