# SPDX-License-Identifier: Apache-2.0
"""The result of a check."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """How severe a finding is. With a WARNING the service is ready.

    FAILED means that the service does not start, is not ready, or is of no use to anybody.
    """

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """The verdict of one check, and one line of text for the administrator."""

    check: str
    verdict: Verdict
    text: str


def ok(check: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str) -> Finding:
    """Return a finding that needs attention."""
    return Finding(check, Verdict.WARNING, text)


def failed(check: str, text: str) -> Finding:
    """Return a finding that keeps the service from starting, or from being of use."""
    return Finding(check, Verdict.FAILED, text)
