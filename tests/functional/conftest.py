# SPDX-License-Identifier: Apache-2.0
"""Have the tests of the images API run with every kind of ticket."""

import os

import pytest

from tests.support.places import KINDS, Place

#: Tests of images with every kind of ticket take too long for each run: some are left to `make soak`.
EVERYTHING = bool(os.environ.get("IMAGEIO_TEST_LONG"))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.kind)
def image_kind(request: pytest.FixtureRequest) -> type[Place]:
    """Each place where images can be."""
    kind: type[Place] = request.param
    return kind


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a kind of storage cannot do, and what need not run each time."""
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    kind = params.get("image_kind", Place)
    if kind is Place:
        return True
    if not {trait for mark in item.iter_markers("needs") for trait in mark.args} <= kind.traits:
        return False
    # One service is enough: what differs from files lies below it.
    if params.get("service") == "tls":
        return False
    return EVERYTHING or item.get_closest_marker("every_kind") is not None
