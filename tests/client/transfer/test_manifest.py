# SPDX-License-Identifier: Apache-2.0
"""Manifests: what a download writes, and what is found with it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from imageio_daemon.client import ChecksumMismatch, LocalError, Settings, Usage, checksum, download, verify
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.transfer import manifest as manifest_module
from tests.client.programs import run
from tests.client.transfer.test_continued_download import without
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.realstorage import missing, mounted

BLOCK = 4 * MiB
SIZE = 22 * MiB + 7


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    """An image of data, zeros in data, holes, and a short last block."""
    return new_image(pieces={0: pattern(5 * MiB), 8 * MiB: bytes(4 * MiB), 17 * MiB: pattern(5 * MiB)}, size=SIZE)


@pytest.fixture
def url(daemon: Daemon, image: Image) -> str:
    return daemon.url(image.ticket)


@pytest.fixture
def manifest(url: str, tls: Settings, tmp_path: Path) -> Path:
    """The manifest of a download of the image, which is `copy` beside it."""
    download(url, tmp_path / "copy", settings=tls, manifest=tmp_path / "manifest")
    return tmp_path / "manifest"


def test_it_is_the_list_of_the_server(daemon: Daemon, manifest: Path, image: Image, tmp_path: Path) -> None:
    with daemon.connect("tls") as client:
        told = client.get(f"/images/{image.ticket}/checksum?blocks={BLOCK}")
    assert manifest.read_bytes() == told.body
    assert json.loads(manifest.read_bytes().splitlines()[-1])["checksum"] == checksum(tmp_path / "copy")
    assert "manifest.part" not in os.listdir(tmp_path)


def test_image_is_complete_even_if_its_manifest_cannot_be_written(
    daemon: Daemon, image: Image, url: str, tmp_path: Path
) -> None:
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, MiB) as full:
        (full / "filler").write_bytes(bytes(MiB))
        copy = tmp_path / "copy"
        result = run("download", "--cafile", daemon.cafile, "--manifest", full / "manifest", url, copy)
        result.failed_with("can't write .*: No space left on device; .*copy is complete", 5)
        assert os.listdir(full) == ["filler"]
    assert copy.read_bytes() == image.content()


def test_equal_images_have_nothing_to_tell(manifest: Path, url: str, tls: Settings, tmp_path: Path) -> None:
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", tmp_path / "copy", tmp_path / "copy.qcow2"], check=True)
    assert verify(manifest, tmp_path / "copy") == []
    assert verify(manifest, url, settings=tls) == []


def test_blocks_that_differ_are_named(
    manifest: Path, image: Image, url: str, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "SPAN", 8 * MiB)
    for path in (image.path, tmp_path / "copy"):
        with path.open("r+b") as f:
            for offset in (MiB, 9 * MiB, SIZE - 1):
                f.seek(offset)
                f.write(b"\xfe")
    bad = [(0, BLOCK), (8 * MiB, BLOCK), (20 * MiB, 2 * MiB + 7)]
    assert verify(manifest, tmp_path / "copy") == bad
    assert verify(manifest, url, settings=tls, shared=True) == bad


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + MiB, 3 * MiB, 0])
def test_other_sizes_differ(manifest: Path, tmp_path: Path, size: int) -> None:
    os.truncate(tmp_path / "copy", size)
    found = verify(manifest, tmp_path / "copy")
    assert sum(length for _, length in found) >= abs(SIZE - size)
    assert found[-1][0] + found[-1][1] == max(size, SIZE)


def test_server_without_lists_tells_only_whether(
    manifest: Path, image: Image, url: str, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "checksum_blocks")
    assert verify(manifest, url, settings=tls) == []
    with image.path.open("r+b") as f:
        f.write(b"\xfe")
    assert verify(manifest, url, settings=tls) == [(0, SIZE)]


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"\xff\xfe"])
def test_damaged_manifest_is_told(manifest: Path, tmp_path: Path, damage: bytes) -> None:
    manifest.write_bytes(manifest.read_bytes()[:100] + damage)
    with pytest.raises(LocalError, match="is no manifest, was damaged"):
        verify(manifest, tmp_path / "copy")


def test_manifest_of_a_part_is_none(manifest: Path, tmp_path: Path) -> None:
    text = manifest.read_text().replace('"offset": 0', '"offset": 4096').splitlines()
    manifest.write_text("".join(f"{line}\n" for line in (text[0], '{"length": 0, "checksum": "x"}')))
    with pytest.raises(LocalError, match="is no manifest"):
        verify(manifest, tmp_path / "copy")


def test_missing_manifest_is_told(tmp_path: Path) -> None:
    (tmp_path / "copy").touch()
    with pytest.raises(LocalError, match=r"can't read .*no-manifest: No such file"):
        verify(tmp_path / "no-manifest", tmp_path / "copy")


def test_manifest_that_cant_be_written_is_told_before_the_transfer(
    url: str, tls: Settings, tmp_path: Path, states: Path
) -> None:
    with pytest.raises(LocalError, match=r"can't write /no/such/manifest\.part"):
        download(url, tmp_path / "copy", settings=tls, manifest="/no/such/manifest")
    assert not (tmp_path / "copy").exists()


def test_copy_that_differs_gets_no_manifest(
    url: str, tls: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteImage, "checksum", lambda *_: {"checksum": "other"})
    with pytest.raises(ChecksumMismatch):
        download(url, tmp_path / "copy", settings=tls, manifest=tmp_path / "manifest")
    assert not {"copy", "manifest", "manifest.part"} & set(os.listdir(tmp_path))


def test_part_has_no_manifest(url: str, tls: Settings, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="is a part"):
        download(url, tmp_path / "copy", settings=tls, dirty=True, manifest=tmp_path / "manifest")


def test_command_lists_what_differs(manifest: Path, tmp_path: Path) -> None:
    good = run("verify", manifest, tmp_path / "copy")
    assert (good.status, good.out) == (0, "all blocks are as the manifest has them\n")
    with (tmp_path / "copy").open("r+b") as f:
        for block in range(6):
            f.seek(block * BLOCK)
            f.write(b"\xfe")
    bad = run("verify", "--json", manifest, tmp_path / "copy")
    assert [json.loads(line) for line in bad.out.splitlines()[:2]] == [
        {"start": 0, "length": BLOCK},
        {"start": BLOCK, "length": BLOCK},
    ]
    bad.failed_with(r"has other digests for the bytes from 0 to 4194304, .* and 2 more places", 6)
