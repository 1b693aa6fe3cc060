# SPDX-License-Identifier: Apache-2.0
"""Tests of processes.py."""

import os
from pathlib import Path

from tests.support.processes import open_files


def test_what_is_open_is_told_by_its_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert open_files(os.getpid())[file.fileno()] == file.name


def test_a_descriptor_that_is_closed_meanwhile_is_left_out() -> None:
    # The list of our own process has the descriptor from which it is read, which is closed afterwards.
    listed = os.listdir(f"/proc/{os.getpid()}/fd")
    assert len(open_files(os.getpid())) == len(listed) - 1
