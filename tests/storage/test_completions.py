# SPDX-License-Identifier: Apache-2.0
"""What is told of operations that have ended."""

import pytest

from imageio_daemon.storage.completions import SLOW_NS, slow_operations, tell


def test_slow_operations_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    before = slow_operations()
    tell("write /image", "/image", SLOW_NS, ())
    assert (slow_operations(), caplog.messages) == (before, [])
    tell("write /image", "/image", SLOW_NS + 10**9, ())
    assert slow_operations() == before + 1
    assert caplog.messages == ["slow storage: write /image took 11.0 s"]
