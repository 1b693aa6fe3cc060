# SPDX-License-Identifier: Apache-2.0
"""Downloads into compressed files and pipes."""

import json
import subprocess
from pathlib import Path

import pytest

from imageio_daemon.client import Settings, Usage, checksum, download, info
from tests.client.conftest import SIZE
from tests.client.programs import command, run
from tests.client.proxy import Proxy
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern

PROGRAMS = {"gz": "gzip", "xz": "xz", "bz2": "bzip2"}


@pytest.mark.parametrize(
    ("suffix", "settings"), [("gz", "tls"), ("xz", "unix"), ("bz2", "tls"), ("zst", "unix")], indirect=["settings"]
)
def test_suffix_says_what_compresses(
    daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage, tmp_path: Path, suffix: str
) -> None:
    copy = tmp_path / f"copy.{suffix}"
    copy.write_bytes(b"older")
    download(daemon.url(new_image(path=source, ops=["read"]).ticket), copy, settings=settings, verify=True)
    assert checksum(copy) == checksum(source)
    assert copy.stat().st_size < 8 * MiB
    assert not (tmp_path / f"copy.{suffix}.part").exists()


@pytest.mark.parametrize("suffix", PROGRAMS)
def test_programs_read_it(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, suffix: str) -> None:
    copy = source.with_name(f"copy.{suffix}")
    download(daemon.url(new_image(path=source).ticket), copy, settings=tls)
    done = subprocess.run([PROGRAMS[suffix], "-dc", copy], capture_output=True, check=True, timeout=60)
    assert done.stdout == source.read_bytes()


def test_zstd_tells_the_size_to_pipes(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    url = daemon.url(new_image(path=source).ticket)
    download(url, tmp_path / "copy.zst", settings=tls)
    assert info(tmp_path / "copy.zst").size == SIZE + 1
    target = new_image(size=SIZE + 1)
    again = command("upload", "-q", "--cafile", daemon.cafile, "--decompress", "zstd", "-", daemon.url(target.ticket))
    with (tmp_path / "copy.zst").open("rb") as stream:
        subprocess.run(again, stdin=stream, check=True, timeout=60)
    assert target.content() == source.read_bytes()


def test_format_raw_writes_bytes_as_they_are(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    download(daemon.url(new_image(path=source).ticket), tmp_path / "copy.gz", settings=tls, format="raw")
    assert (tmp_path / "copy.gz").read_bytes() == source.read_bytes()


def test_empty_image_is_a_compressed_file_of_nothing(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path
) -> None:
    download(daemon.url(new_image(size=0).ticket), tmp_path / "copy.zst", settings=tls)
    assert info(tmp_path / "copy.zst").size == 0


def test_failed_download_leaves_no_file(daemon: Daemon, tmp_path: Path) -> None:
    run("download", "--cafile", daemon.cafile, daemon.url("ticket"), tmp_path / "copy.zst").failed_with("403", 3)
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize("name", ["copy.tar", "copy.ova", "copy.qcow2.gz", "copy.tgz"])
def test_what_is_not_made_is_refused(daemon: Daemon, tmp_path: Path, name: str) -> None:
    with pytest.raises(Usage, match="is no name for an image that is downloaded"):
        download(daemon.url("ticket"), tmp_path / name)


def test_changes_are_not_compressed(daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="is no name for an image"):
        download(daemon.url("ticket"), tmp_path / "copy.zst", dirty=True)


# Clusters of qcow2


@pytest.fixture
def fragments(tmp_path: Path) -> Path:
    """An image whose extents are no whole clusters, and whose size is neither."""
    path = tmp_path / "fragments"
    with path.open("wb") as file:
        for number in range(200):
            file.seek(number * 40 * KiB)
            file.write(bytes([number + 1]) * 4 * KiB)
        file.truncate(9 * MiB + 5 * KiB)
    return path


def test_clusters_are_compressed(
    daemon: Daemon, settings: Settings, fragments: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.qcow2"
    download(daemon.url(new_image(path=fragments).ticket), copy, settings=settings, compress=True, verify=True)
    subprocess.run(["qemu-img", "compare", "-f", "raw", "-F", "qcow2", fragments, copy], check=True, timeout=60)
    checked = subprocess.run(["qemu-img", "check", "--output=json", copy], check=True, capture_output=True, timeout=60)
    told = json.loads(checked.stdout)
    assert told["compressed-clusters"] == told["allocated-clusters"] > 100


def test_lost_connections_leave_no_half_clusters(
    daemon: Daemon, fragments: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    copy, random = tmp_path / "copy.qcow2", tmp_path / "random"
    random.write_bytes(pattern(6 * MiB))
    budgets = iter([MiB + 1000, MiB + 30_000, 2 * MiB + 7])
    options = ("--no-local", "--connections=1", "--cafile", daemon.cafile, "--compress")
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        ticket = new_image(path=random).ticket
        done = run("download", "-q", *options, f"https://localhost:{proxy.port}/images/{ticket}", copy)
    assert done.status == 0, done
    subprocess.run(["qemu-img", "compare", "-f", "raw", "-F", "qcow2", random, copy], check=True, timeout=60)


@pytest.mark.parametrize(("name", "dirty"), [("copy.raw", False), ("copy.vmdk", False), ("copy.qcow2", True)])
def test_only_whole_qcow2_images_have_compressed_clusters(
    daemon: Daemon, tmp_path: Path, name: str, dirty: bool
) -> None:
    with pytest.raises(Usage, match="compressed clusters are those of a whole qcow2 image"):
        download(daemon.url("ticket"), tmp_path / name, compress=True, dirty=dirty)
