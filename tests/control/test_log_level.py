# SPDX-License-Identifier: Apache-2.0
"""imageioctl log-level."""

from collections.abc import Iterator

import pytest

from imageio_daemon.control.arguments import LEVELS
from imageio_daemon.runtime import logs
from tests.control.conftest import Ctl
from tests.support.daemon import Daemon


@pytest.fixture(autouse=True)
def _level(daemon: Daemon) -> Iterator[None]:
    """Set the level back, for other tests."""
    yield
    assert daemon.control("PUT", "/log", b'{"level": "info"}').status == 200


def test_level_is_shown_and_changed(ctl: Ctl) -> None:
    assert ctl("log-level").out == "info\n"
    assert ctl("log-level", "debug").out == "debug\n"
    assert ctl("log-level").out == "debug\n"


def test_level_is_changed_for_a_time(ctl: Ctl) -> None:
    assert ctl("log-level", "warning", "--for", "2h").out == "warning for 2 h 00 min, then info\n"
    (told,) = ctl("log-level", "--json").json()
    assert (told["level"], told["configured"], 7100 < told["seconds"] <= 7200) == ("warning", "info", True)


def test_time_needs_a_level(ctl: Ctl) -> None:
    ctl("log-level", "--for", "2h").failed_with("--for needs a level", 2)


def test_levels_are_those_of_the_daemon() -> None:
    assert logs.LEVELS == LEVELS
