# SPDX-License-Identifier: Apache-2.0
"""qemu-img: its https driver opens a transfer URL, and its tools agree with what was transferred."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import MakeImage, MiB, pattern

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")


def qemu_img(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["qemu-img", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def has_https() -> None:
    result = qemu_img("info", "json:" + json.dumps({"driver": "https", "url": "https://localhost:1/x"}))
    if "Unknown driver" in result.stderr or "Unknown protocol" in result.stderr:
        pytest.skip("qemu-img has no https driver: Debian has it in qemu-block-extra")


def source(daemon: Daemon, ticket: str) -> str:
    # The driver takes no file of an authority, and this one is known to nobody.
    options = {"driver": "raw", "file": {"driver": "https", "url": daemon.url(ticket), "sslverify": False}}
    return "json:" + json.dumps(options)


@pytest.mark.usefixtures("has_https")
def test_convert_from_a_transfer_url(daemon: Daemon, new_image: MakeImage, tmp_path: Path) -> None:
    image = new_image(pattern(5 * MiB), ops=["read"])
    # One request at a time: the https driver of qemu 7.2 loses a wake-up when several answers arrive together, and
    # waits for ever with all bytes read (5 of 100 runs against a server of Python's library, none of 100 with -m 1).
    result = qemu_img("convert", "-m", "1", "-O", "raw", source(daemon, image.ticket), tmp_path / "copy")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "copy").read_bytes() == image.content()


@pytest.mark.usefixtures("has_https")
def test_info_of_a_transfer_url(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(size=64 * MiB, ops=["read"])
    result = qemu_img("info", "--output", "json", source(daemon, image.ticket))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["virtual-size"] == 64 * MiB


def test_compare_after_an_upload_with_zeros(client: Connection, new_image: MakeImage, tmp_path: Path) -> None:
    content = pattern(MiB) + bytes(3 * MiB) + pattern(MiB, seed=1)
    (tmp_path / "source").write_bytes(content)
    image = new_image(size=len(content), sparse=True)
    assert client.put_at(f"{image.url}?flush=n", 0, content[:MiB]).status == 200
    assert client.patch(image.url, {"op": "zero", "offset": MiB, "size": 3 * MiB}).status == 200
    assert client.put_at(image.url, 4 * MiB, content[4 * MiB :]).status == 200
    result = qemu_img("compare", "-f", "raw", "-F", "raw", tmp_path / "source", image.path)
    assert result.returncode == 0, result.stdout


def test_map_agrees_with_the_extents(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=8 * MiB)
    for offset in (MiB, 4 * MiB):
        assert client.put_at(image.url, offset, pattern(MiB)).status == 200
    mapped = json.loads(qemu_img("map", "--output", "json", "-f", "raw", image.path).stdout)
    extents = client.get(f"{image.url}/extents").json()
    assert [(each["start"], each["length"], each["zero"]) for each in mapped] == [
        (each["start"], each["length"], each["zero"]) for each in extents
    ]
