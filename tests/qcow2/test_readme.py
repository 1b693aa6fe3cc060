# SPDX-License-Identifier: Apache-2.0
"""README.md has each behaviour once, with tests that exist or the reason why there is none."""

import re
from pathlib import Path

import pytest

from ..frontends.nbd.test_checklist import functions_in

TEXT = (Path(__file__).parent / "README.md").read_text()
LINES = re.findall(r"^\| (\d+) \| [^|]+ \| (.+) \|$", TEXT, re.MULTILINE)
NAMED = sorted({name for _, cell in LINES for name in re.findall(r"`([^`]+\.py::[^`]+)`", cell)})


def test_every_line_has_a_test_or_says_why_not() -> None:
    assert [int(number) for number, cell in LINES if cell.strip()] == list(range(1, 149))


@pytest.mark.parametrize("name", NAMED)
def test_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function in functions_in(path)
