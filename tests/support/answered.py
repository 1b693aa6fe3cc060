# SPDX-License-Identifier: Apache-2.0
"""Check at the end of a run of all tests that each part of the OpenAPI documents was in some answer.

A plugin of pytest. The processes of pytest-xdist report their parts to the process that has started them.
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
    """Return whether all tests were to run, as root, because tests that only root can run have answers of their own."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    options = ("keyword", "markexpr", "deselect", "lf", "first_cases", "maxfail", "collectonly")
    return not chosen and not any(config.getoption(name, None) for name in options) and os.geteuid() == 0
