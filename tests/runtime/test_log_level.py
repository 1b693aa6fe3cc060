# SPDX-License-Identifier: Apache-2.0
"""The level of the log while the daemon runs."""

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from imageio_daemon.config.options import describe
from imageio_daemon.config.sections import LogSection
from imageio_daemon.runtime.logs import LEVELS, LogLevel
from tests.support.polling import eventually_async


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    before = logger.level
    yield logger
    logger.setLevel(before)


async def test_level_is_changed_until_the_next_change(root: logging.Logger) -> None:
    level = LogLevel("info")
    level.set("debug")
    assert root.level == logging.DEBUG
    assert level.state() == {"level": "debug", "configured": "info", "seconds": None}
    level.reset()
    assert root.level == logging.INFO


async def test_level_is_the_configured_one_after_the_time(root: logging.Logger) -> None:
    level = LogLevel("warning")
    level.set("debug", 600)
    seconds = level.state()["seconds"]
    assert isinstance(seconds, int)
    assert 590 < seconds <= 600
    level.set("debug", 0.01)
    await eventually_async(lambda: root.level == logging.WARNING)
    assert level.state()["seconds"] is None


async def test_later_change_is_not_undone_by_an_earlier_one(root: logging.Logger) -> None:
    level = LogLevel("info")
    level.set("debug", 0.01)
    level.set("error")
    level.set("warning", 0.05)
    level.configure("error")
    assert level.state() == {"level": "error", "configured": "error", "seconds": None}
    assert root.level == logging.ERROR


def test_levels_are_those_of_the_configuration() -> None:
    (option,) = [describe(field) for field in dataclasses.fields(LogSection) if field.name == "level"]
    assert option.expected == " or ".join(LEVELS)
