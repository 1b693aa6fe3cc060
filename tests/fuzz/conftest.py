# SPDX-License-Identifier: Apache-2.0
"""How long to look for trouble: a moment in each run of the tests, an hour with IMAGEIO_TEST_LONG=1."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))

# No deadline: the machine may be busy. The fixtures of an example are meant to be shared with the others.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])

settings.register_profile("short", _COMMON, max_examples=60)
settings.register_profile("long", _COMMON, max_examples=5000)
settings.load_profile("long" if LONG else "short")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Give a long campaign the time that it takes; the limit of a usual test would end it in the middle."""
    for item in items:
        if LONG and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(7200))
