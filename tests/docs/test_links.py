# SPDX-License-Identifier: Apache-2.0
"""Links and paths in the documents of this repository lead somewhere."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import PROJECT

PAGES = sorted(
    page
    for place in (".", "docs", "ioutil_ext", "tests", "benchmarks")
    for page in PROJECT.joinpath(place).glob("*.md" if place == "." else "**/*.md")
)
LINK = re.compile(r"\]\(([^()\s]+)\)")
#: Files of sources that a text names.
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|c|h|md))`")
#: What the names are relative to, besides the page.
ROOTS = (PROJECT, *(PROJECT / name for name in ("imageio_daemon", "ioutil_ext", "tests")), Path("/usr/include"))


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links to this repository."""
    yield from (link for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link))


def anchors(page: Path) -> set[str]:
    """Return the fragments that the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in links(page):
        name, _, fragment = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_sources_that_are_named_exist(page: Path) -> None:
    roots = (page.parent, *ROOTS)
    assert [name for name in NAMED.findall(prose(page)) if not any((root / name).exists() for root in roots)] == []


@pytest.mark.parametrize("target", ["check", "soak", "soak-qcow2", "campaign-client", "differential", "test-links"])
def test_tests_that_a_target_runs_exist(target: str) -> None:
    shown = subprocess.check_output(["make", "--dry-run", target], cwd=PROJECT, text=True)
    named = re.findall(r"(?<= )tests/[\w./-]+", shown)
    assert named
    assert [name for name in named if not (PROJECT / name).exists()] == []
