# SPDX-License-Identifier: Apache-2.0
"""Limits by what the process may have of descriptors."""

import logging

import pytest

from imageio_daemon.config.config import Config
from imageio_daemon.config.sections import DaemonSection
from imageio_daemon.config.services import NbdSection
from imageio_daemon.net.connection_limit import Stage
from imageio_daemon.net.connection_limits import ConnectionLimits, shortage


@pytest.mark.parametrize("nbd", [False, True])
def test_what_is_said_to_be_needed_is_enough(nbd: bool) -> None:
    config = Config(daemon=DaemonSection(max_total_connections=2000), nbd=NbdSection(enable=nbd))
    needed = int(shortage(config, 1024).partition(" connections, ")[2].split()[0])
    limits = ConnectionLimits(config, needed)
    assert (limits.http.most, shortage(config, needed)) == (2000, "")


def test_too_few_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ConnectionLimits(Config(), 1024)
    assert "1024 open files are enough for 112 connections" in caplog.text


def test_a_stranger_of_the_larger_crowd_is_closed() -> None:
    limits = ConnectionLimits(Config(nbd=NbdSection(enable=True)), 65536)
    closed: list[str] = []
    limits.http.enter(Stage.SILENT, "a", lambda: closed.append("http"))
    for _ in range(2):
        limits.nbd.enter(Stage.SILENT, "a", lambda: closed.append("nbd"))
    assert limits.relieve()
    assert closed == ["nbd"]
