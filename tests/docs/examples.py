# SPDX-License-Identifier: Apache-2.0
"""The examples of a page of the documentation: they do what the page says."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


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


def check(
    page: Path, examples: Iterable[Example], directory: Path, environment: Mapping[str, str], *, timeout: float = 60
) -> None:
    """Run examples of a page one after the other in one shell, and check what each of them prints.

    directory: where they run. environment: the variables that the page takes for granted. timeout: seconds for all of
    them.
    """
    examples = list(examples)
    script = "".join(f"{example.command}\nprintf '<end of %s>' {example.line}\n" for example in examples)
    result = subprocess.run(
        ["bash", "-u"],
        input=script.encode(),
        cwd=directory,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=True,
    )
    printed = result.stdout.decode(errors="replace").replace("\r\n", "\n")
    for example in examples:
        output, end, printed = printed.partition(f"<end of {example.line}>")
        assert end, f"{page.name}:{example.line} did not run"
        assert re.fullmatch(_as_pattern(example.output), output, re.DOTALL), (
            f"{page.name}:{example.line}: {example.command}\nprinted\n{output}\nand not\n{example.output}"
        )


def _as_pattern(output: str) -> str:
    """Return a regular expression for what an example prints; `…` stands for anything."""
    return ".*".join(re.escape(part) for part in output.split("…"))
