# SPDX-License-Identifier: Apache-2.0
"""Transfers that are limited to a rate, against a daemon."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from imageio_daemon.client import Settings, download, upload
from imageio_daemon.client.server.pace import BURST
from imageio_daemon.client.transfer.progress import Progress
from tests.client.programs import run
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB, pattern

RATE = 4 * MiB
SIZE = 6 * MiB
#: Of SIZE at RATE, less what goes at once at the beginning.
LEAST = SIZE / RATE - 2 * BURST


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    return new_image(size=SIZE, ops=["read", "write"])


def test_upload_keeps_to_the_rate(daemon: Daemon, settings: Settings, disk: Path, target: Image) -> None:
    """On all of its connections together, by TLS and by the unix socket, to which the kernel sends from the file."""
    seen: list[Progress] = []
    limited = replace(settings, rate=RATE, connections=4)
    upload(disk, daemon.url(target.ticket), settings=limited, wire_compression="never", progress=seen.append)
    assert seen[-1].elapsed >= LEAST
    assert target.content() == disk.read_bytes()
    # It is smooth: no report has much more than the rate since the beginning.
    assert all(progress.data <= RATE * (progress.elapsed + 3 * BURST) for progress in seen)


def test_download_keeps_to_the_rate(
    daemon: Daemon, settings: Settings, disk: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    url = daemon.url(new_image(path=disk, ops=["read"]).ticket)
    download(url, tmp_path / "copy", settings=replace(settings, rate=RATE, connections=4), progress=seen.append)
    assert seen[-1].elapsed >= LEAST
    assert (tmp_path / "copy").read_bytes() == disk.read_bytes()
    assert all(progress.data <= RATE * (progress.elapsed + 3 * BURST) for progress in seen)


def test_compressed_data_counts_as_it_is_sent(daemon: Daemon, tls: Settings, tmp_path: Path, target: Image) -> None:
    (tmp_path / "text").write_bytes(b"compressible " * (SIZE // 13 + 1))
    (tmp_path / "disk.raw").write_bytes((tmp_path / "text").read_bytes()[:SIZE])
    began = time.monotonic()
    limited = replace(tls, rate=RATE // 16)
    upload(tmp_path / "disk.raw", daemon.url(target.ticket), settings=limited, wire_compression="always")
    assert time.monotonic() - began < 16 * LEAST / 2
    assert target.content() == (tmp_path / "disk.raw").read_bytes()


def test_command_has_the_rate(daemon: Daemon, disk: Path, target: Image) -> None:
    began = time.monotonic()
    options = ("--wire-compression=never", "--cafile", daemon.cafile)
    result = run("upload", "--quiet", "--rate", "4M", *options, disk, daemon.url(target.ticket))
    assert (result.status, result.err) == (0, "")
    assert time.monotonic() - began >= LEAST


@pytest.mark.parametrize("rate", ["1K", "0", "fast", "-1"])
def test_rate_that_is_none_is_refused(rate: str) -> None:
    result = run("upload", "--rate", rate, "disk", "https://host/images/x")
    assert result.status == 2
    assert "--rate" in result.err
