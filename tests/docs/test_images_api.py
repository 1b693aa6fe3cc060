# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/images-api.md do what the page says."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.images import MiB, pattern

PAGE = Path(__file__).resolve().parents[2] / "docs" / "images-api.md"


@dataclass(frozen=True)
class Example:
    """A command of the page, its line, and what it prints."""

    line: int
    command: str
    output: str


def sections(text: str) -> dict[str, list[Example]]:
    """Return the examples below each heading."""
    found: dict[str, list[Example]] = {}
    heading, inside = "", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif line.startswith("#") and not inside:
            heading = line.lstrip("# ")
        elif inside and line.startswith("$ "):
            found.setdefault(heading, []).append(Example(number, line[2:], ""))
        elif inside:
            last = found[heading][-1]
            found[heading][-1] = Example(last.line, last.command, f"{last.output}{line}\n")
    return found


SECTIONS = sections(PAGE.read_text())
PRELUDE, *OTHERS = SECTIONS


def as_pattern(output: str) -> str:
    """Return a regular expression for what an example prints; `…` stands for anything."""
    return ".*".join(re.escape(part) for part in output.split("…"))


@pytest.mark.unopened
@pytest.mark.parametrize("heading", OTHERS)
def test_examples(daemon: Daemon, tmp_path: Path, heading: str) -> None:
    if shutil.which("xxd") is None and any("xxd" in example.command for example in SECTIONS[heading]):
        pytest.skip("xxd is not installed")
    disk = tmp_path / "disk.raw"
    disk.write_bytes(pattern(MiB))
    examples = [*SECTIONS[PRELUDE], *SECTIONS["Write: PUT /images/ID"][:1], *SECTIONS[heading]]
    script = "".join(f"{example.command}\nprintf '<end of %s>' {example.line}\n" for example in examples)
    environment = os.environ | {
        "CONTROL": daemon.control_socket,
        "LOCAL": daemon.local_socket,
        "IMAGES": f"https://localhost:{daemon.port}",
        "CURL_CA_BUNDLE": str(daemon.cafile),
        "DISK": str(disk),
    }
    result = subprocess.run(
        ["bash", "-u"],
        input=script.encode(),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=True,
    )
    printed = result.stdout.decode(errors="replace").replace("\r\n", "\n")
    for example in examples:
        output, end, printed = printed.partition(f"<end of {example.line}>")
        assert end, f"{PAGE.name}:{example.line} did not run"
        assert re.fullmatch(as_pattern(example.output), output, re.DOTALL), (
            f"{PAGE.name}:{example.line}: {example.command}\nprinted\n{output}\nand not\n{example.output}"
        )
