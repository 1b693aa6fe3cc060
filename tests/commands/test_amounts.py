# SPDX-License-Identifier: Apache-2.0
"""Bytes and seconds as arguments of commands."""

import argparse

import pytest

from imageio_daemon.commands.amounts import parse_seconds, parse_size
from imageio_daemon.units import MiB


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("90", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5h", "1M", "1 h", "9" * 10])
def test_times_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a time"):
        parse_seconds(text)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("512", 512), ("1k", 1024), ("3M", 3 * MiB), ("1T", 1024**4)])
def test_sizes_have_units(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "x", "K", "-1", "1.5G", "1KB", "1P"])
def test_sizes_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a number of bytes"):
        parse_size(text)
