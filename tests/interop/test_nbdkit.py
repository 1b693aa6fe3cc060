# SPDX-License-Identifier: Apache-2.0
"""nbdkit's curl plugin, which makes an NBD export of a transfer URL."""

import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern


def copy(daemon: Daemon, image: Image, target: Path) -> bytes:
    """Read all of an image, by nbdcopy from nbdkit, into a file."""
    url, cafile = daemon.url(image.ticket), daemon.cafile
    command = ["nbdkit", "-U", "-", "curl", url, f"cainfo={cafile}", "--run", f'nbdcopy "$uri" {target}']
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return target.read_bytes()


@pytest.mark.parametrize("size", [MiB, 3 * MiB + 512, 10_000_001])
@pytest.mark.parametrize("ops", [["read"], ["write"]], ids=str)
def test_nbdcopy_reads_all_of_an_image(
    daemon: Daemon, new_image: MakeImage, tmp_path: Path, size: int, ops: list[str]
) -> None:
    # Each request of the plugin ends a byte too far, the last one past the image.
    image = new_image(pattern(size), ops=ops)
    assert copy(daemon, image, tmp_path / "copy") == pattern(size)


def test_a_ticket_smaller_than_the_image_is_all_that_there_is(
    daemon: Daemon, new_image: MakeImage, tmp_path: Path
) -> None:
    image = new_image(pattern(3 * MiB), ticket_size=2 * MiB + 512)
    assert copy(daemon, image, tmp_path / "copy") == pattern(3 * MiB)[: 2 * MiB + 512]


def test_each_request_is_plain(daemon: Daemon, client: Connection, new_image: MakeImage, tmp_path: Path) -> None:
    image = new_image(pattern(8 * MiB), ops=["read"])
    assert client.get(image.url, {"Range": "bytes=0-0"}).status == 206  # the image is open
    before = daemon.served("remote", "lane")["requests"]
    copy(daemon, image, tmp_path / "copy")
    served = daemon.served("remote", "lane")["requests"] - before
    assert (served >= 8 * MiB // (256 * 1024)) == daemon.eager
