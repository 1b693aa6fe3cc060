# SPDX-License-Identifier: Apache-2.0
"""At the end of a run of all tests: each part that an OpenAPI document names was in some answer.

A plugin of pytest. Processes of pytest-xdist tell theirs to the one that has started them.
"""

import os
from typing import Any

import pytest

from tests.support.openapi import CONTROL, IMAGES

DOCUMENTS = (IMAGES, CONTROL)
_KEY = "answered"


def missing() -> list[str]:
    """Return the parts that no answer had so far."""
    return [f"{document.name}#{part}" for document in DOCUMENTS for part in sorted(document.named - document.answered)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for document, parts in zip(DOCUMENTS, getattr(node, "workeroutput", {}).get(_KEY, ()), strict=False):
        document.answered.update(parts)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = [sorted(document.answered) for document in DOCUMENTS]
    elif exitstatus == pytest.ExitCode.OK and _is_complete(session.config) and missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    if _is_complete(config) and (left := missing()):
        terminalreporter.section("named in docs/openapi, and in no answer")
        terminalreporter.write_line("\n".join(left))


def _is_complete(config: pytest.Config) -> bool:
    """Tell whether all tests were to run: what others than root leave out has answers of its own."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    options = ("keyword", "markexpr", "deselect", "lf", "first_cases", "maxfail", "collectonly")
    return not chosen and not any(config.getoption(name, None) for name in options) and os.geteuid() == 0
