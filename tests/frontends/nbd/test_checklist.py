# SPDX-License-Identifier: Apache-2.0
"""CHECKLIST.md is complete, and every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
LINES = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| (.+) \|$", (TESTS / "frontends/nbd/CHECKLIST.md").read_text(), re.MULTILINE
)
NAMED = sorted({name for _, cell in LINES for name in re.findall(r"`([^`]+)`", cell)})


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_item_has_a_test() -> None:
    numbers = [int(item) for item, cell in LINES if item.isdigit() and "`" in cell]
    assert numbers == list(range(1, 124))


@pytest.mark.parametrize("name", NAMED)
def test_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function in functions_in(path)
