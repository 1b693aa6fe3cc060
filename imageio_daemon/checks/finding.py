# SPDX-License-Identifier: Apache-2.0
"""What a check has found."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """OK; a WARNING, with which the service is ready; FAILED: it does not start, is not ready, or nobody can use it."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """The verdict of one check, and one line of text for the administrator."""

    check: str
    verdict: Verdict
    text: str


def ok(check: str, text: str) -> Finding:
    """Return that all is well."""
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str) -> Finding:
    """Return what needs a look."""
    return Finding(check, Verdict.WARNING, text)


def failed(check: str, text: str) -> Finding:
    """Return what keeps the service from starting, or from being of use."""
    return Finding(check, Verdict.FAILED, text)
