# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of local images."""

import os
from pathlib import Path

import pytest

from tests.support.images import MiB, pattern


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A raw image with a size that every format can have: data, zeros, a hole."""
    path = tmp_path / "disk.raw"
    path.write_bytes(pattern(3 * MiB) + bytes(MiB) + pattern(MiB, 1))
    os.truncate(path, 63 * MiB)
    return path
