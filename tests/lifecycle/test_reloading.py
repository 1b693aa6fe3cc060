# SPDX-License-Identifier: Apache-2.0
"""A reload of the configuration."""

import dataclasses
import logging
from typing import Any

import pytest

from imageio_daemon.config.config import Config
from imageio_daemon.errors import ConfigError
from imageio_daemon.lifecycle.reloading import Reloading


class Files:
    """Configuration files, and the options of a daemon that were changed by a reload."""

    def __init__(self) -> None:
        self.config: Config | None = Config()
        self.applied: list[tuple[str, Any]] = []
        self.reloading = Reloading(
            Config(),
            self._load,
            {
                ("log", "level"): lambda value: self.applied.append(("level", value)),
                ("daemon", "buffer_memory"): lambda value: self.applied.append(("memory", value)),
            },
        )

    def _load(self) -> Config:
        if self.config is None:
            raise ConfigError("a.conf:1: expected something else")
        return self.config

    def change(self, section: str, **options: object) -> None:
        assert self.config is not None
        changed = dataclasses.replace(getattr(self.config, section), **options)
        self.config = dataclasses.replace(self.config, **{section: changed})


@pytest.fixture
def files(caplog: pytest.LogCaptureFixture) -> Files:
    caplog.set_level(logging.INFO)
    return Files()


async def test_changed_options_are_applied_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.change("log", level="debug")
    for _ in range(2):
        await files.reloading.reload()
    assert files.applied == [("level", "debug")]
    assert files.reloading.config.log.level == "debug"
    assert [(record.message, record.__dict__["fields"]) for record in caplog.records] == [
        ("option changed", {"option": "[log] level", "value": "debug"})
    ]


async def test_other_options_wait_for_the_next_start(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.change("remote", port=1)
    files.change("daemon", buffer_memory=2**30)
    await files.reloading.reload()
    assert files.applied == [("memory", 2**30)]
    assert "[remote] port changes at the next start" in caplog.text
    assert files.reloading.config.remote.port == Config().remote.port


async def test_invalid_files_change_nothing(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.config = None
    await files.reloading.reload()
    assert files.applied == []
    assert "the configuration is not reloaded: a.conf:1: expected something else" in caplog.text


async def test_what_is_not_in_force_is_told_until_it_is(files: Files) -> None:
    good = files.config
    files.config = None
    await files.reloading.reload()
    assert "the configuration from before stays in force" in files.reloading.why_not()
    files.config = good
    files.change("remote", port=1, host="::1")
    await files.reloading.reload()
    assert files.reloading.why_not() == "the next start changes [remote] host, [remote] port"
    files.config = good
    await files.reloading.reload()
    assert files.reloading.why_not() == ""
