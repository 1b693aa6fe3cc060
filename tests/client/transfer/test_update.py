# SPDX-License-Identifier: Apache-2.0
"""Transfers of what differs only: upload(update=True), download(update=True)."""

import io
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    LocalError,
    Refused,
    Settings,
    Temporary,
    Usage,
    checksum,
    download,
    upload,
)
from imageio_daemon.client.local.source import FileSource
from imageio_daemon.client.local.target import ExistingImage
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.transfer import equality
from imageio_daemon.client.transfer.block_hashing import hash_unit
from tests.client.programs import run
from tests.client.proxy import Proxy
from tests.client.transfer.test_continued_download import without
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType

BLOCK = 4 * MiB
SIZE = 40 * MiB + 5
#: Random pairs of images; the campaign has IMAGEIO_TEST_LONG=1.
PAIRS = 1000 if os.environ.get("IMAGEIO_TEST_LONG") else 6
#: The places of the image that differ from its base: data in data, in a hole and at the end; a hole.
CHANGED = {MiB: b"changed", 25 * MiB: pattern(100), SIZE - 1: b"!"}


def base(path: Path) -> Path:
    """Make the image that the others were: data, a hole, data in two blocks."""
    with path.open("wb") as f:
        f.write(pattern(10 * MiB))
        f.seek(30 * MiB)
        f.write(pattern(8 * MiB, 1))
        f.truncate(SIZE)
    return path


def change(path: Path) -> Path:
    with path.open("r+b") as f:
        for offset, data in CHANGED.items():
            f.seek(offset)
            f.write(data)
        f.seek(32 * MiB)
        f.write(bytes(4 * MiB))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return change(base(tmp_path / "source"))


@pytest.fixture
def target(new_image: MakeImage, tmp_path: Path) -> Image:
    """The older image on the server."""
    return new_image(path=base(tmp_path / "target"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The older copy here."""
    return base(tmp_path / "copy")


@pytest.fixture
def url(daemon: Daemon, source: Path, new_image: MakeImage) -> str:
    """The newer image on the server."""
    return daemon.url(new_image(path=source, ops=["read"]).ticket)


# Uploads


@pytest.mark.parametrize("features", [(), ("finalize",)], ids=["finalized", "verified"])
def test_only_blocks_that_differ_are_sent(
    daemon: Daemon,
    source: Path,
    target: Image,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    features: tuple[str, ...],
) -> None:
    without(monkeypatch, *features)
    done = upload(source, daemon.url(target.ticket), settings=settings, update=True)
    assert target.content() == source.read_bytes()
    assert done.progress.data < 2 * BLOCK  # of the first and the last block; the others are mostly zeros
    assert done.progress.resumed == SIZE - 4 * BLOCK - SIZE % BLOCK + BLOCK
    assert done.progress.done == SIZE
    assert done.checksum == checksum(source)


def test_ticket_that_has_another_image_says_so(daemon: Daemon, target: Image, source: Path, tmp_path: Path) -> None:
    """It was finalized, so the same command would not help."""
    update = ("upload", "--update", "--cafile", daemon.cafile)
    url = daemon.url(target.ticket)
    assert run(*update, source, url).status == 0
    result = run(*update, base(tmp_path / "other"), url)
    result.failed_with("finalized with another image, .* any more: ask for a new one$", 3)
    assert target.content() == source.read_bytes()


def test_equal_images_have_nothing_to_send(daemon: Daemon, target: Image, tls: Settings, tmp_path: Path) -> None:
    done = upload(base(tmp_path / "equal"), daemon.url(target.ticket), settings=tls, update=True)
    assert (done.progress.resumed, done.progress.data, done.progress.zero) == (SIZE, 0, 0)


def test_blocks_are_sent_while_others_are_compared(
    daemon: Daemon, source: Path, new_image: MakeImage, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(equality, "LEAST", BLOCK)
    monkeypatch.setattr(f"{equality.__name__}.hash_unit", told(done, "compare", hash_unit))
    monkeypatch.setattr(RemoteImage, "write", told(done, "write", RemoteImage.write))
    target = new_image(b"\xff" * SIZE)
    upload(source, daemon.url(target.ticket), settings=replace(tls, connections=1), update=True)
    assert done[:2] == ["compare", "write"]
    assert "compare" in done[2:]


def told(done: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, whose calls are told."""

    def call(*arguments: Any, **options: Any) -> Any:
        done.append(name)
        return function(*arguments, **options)

    return call


def test_too_small_target_is_told_before_it_is_changed(
    daemon: Daemon, source: Path, target: Image, tls: Settings
) -> None:
    os.truncate(target.path, SIZE - MiB)
    before = target.path.read_bytes()
    with pytest.raises(ChecksumMismatch, match="can't verify: the target has"):
        upload(source, daemon.url(daemon.add_ticket(target.path, SIZE - MiB)), settings=tls, update=True)
    assert target.path.read_bytes() == before


def test_qcow2_is_sent_where_it_differs(daemon: Daemon, source: Path, target: Image, tls: Settings) -> None:
    with source.open("r+b") as f:
        f.truncate(SIZE - 5)
    os.truncate(target.path, SIZE - 5)
    image = source.with_suffix(".qcow2")
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, image], check=True)
    ticket = daemon.add_ticket(target.path, SIZE - 5)
    assert upload(image, daemon.url(ticket), settings=tls, update=True).progress.resumed > 20 * MiB
    assert target.path.read_bytes() == source.read_bytes()


def test_larger_target_keeps_its_rest(daemon: Daemon, source: Path, new_image: MakeImage, tls: Settings) -> None:
    target = new_image(base(source.with_name("base")).read_bytes() + b"rest")
    assert upload(source, daemon.url(target.ticket), settings=tls, update=True).progress.resumed > 20 * MiB
    assert target.content() == source.read_bytes() + b"rest"


def test_wrong_base_is_overwritten(daemon: Daemon, source: Path, new_image: MakeImage, tls: Settings) -> None:
    target = new_image(b"\xff" * SIZE)
    assert upload(source, daemon.url(target.ticket), settings=tls, update=True).progress.resumed == 0
    assert target.content() == source.read_bytes()


def test_new_target_is_not_compared(daemon: Daemon, source: Path, new_image: MakeImage, tls: Settings) -> None:
    target = new_image(size=SIZE, sparse=True)
    assert upload(source, daemon.url(target.ticket), settings=tls, update=True).progress.skipped > 0
    assert target.content() == source.read_bytes()


def test_units_are_compared_where_servers_list_no_blocks(
    daemon: Daemon, source: Path, target: Image, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "checksum_blocks")
    assert upload(source, daemon.url(target.ticket), settings=tls, update=True).progress.resumed > 0
    assert target.content() == source.read_bytes()


def test_server_without_checksums_of_ranges_is_told(
    daemon: Daemon, source: Path, target: Image, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "checksum_blocks", "checksum_range")
    before = target.content()
    with pytest.raises(Refused, match="nobody knows what differs: copy all"):
        upload(source, daemon.url(target.ticket), settings=tls, update=True)
    with pytest.raises(Refused, match="nobody knows what differs: copy all"):
        download(daemon.url(target.ticket), source, settings=tls, update=True)
    assert target.content() == before


def test_interrupted_update_goes_on(own: Daemon, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSource, "portion", BLOCK)
    source.write_bytes(pattern(SIZE, 5))
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * SIZE)
    ticket = own.add_ticket(target, SIZE)
    settings = Settings(cafile=str(own.cafile), local=False, retry_for=0, connections=1)
    budgets = iter([20 * MiB])
    with Proxy(own.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{ticket}"
        with pytest.raises(Temporary):
            upload(source, url, settings=settings, update=True, checkpoint=0)
    assert upload(source, own.url(ticket), settings=settings, update=True).progress.resumed >= 12 * MiB
    assert target.read_bytes() == source.read_bytes()


def test_what_the_server_has_recorded_is_compared(own: Daemon, source: Path, tmp_path: Path) -> None:
    target = base(tmp_path / "target")
    url, settings = own.url(own.add_ticket(target, SIZE)), Settings(cafile=str(own.cafile))
    upload(source, url, settings=settings)
    with source.open("r+b") as f:
        f.seek(5 * MiB)
        f.write(b"changed since")
    assert upload(source, url, settings=settings, update=True).progress.resumed >= SIZE - BLOCK
    assert target.read_bytes() == source.read_bytes()


def test_update_is_what_a_mismatch_advises(
    daemon: Daemon, source: Path, target: Image, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update has no --restart."""

    def meddle(_: FileSource) -> None:
        with target.path.open("r+b") as f:
            f.write(b"somebody")

    url = daemon.url(target.ticket)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(FileSource, "check", meddle)
        with pytest.raises(ChecksumMismatch, match="or what differs with --update"):
            upload(source, url, settings=tls, update=True)
    upload(source, url, settings=tls, update=True)
    assert target.content() == source.read_bytes()


@pytest.mark.parametrize("more", [{"restart": True}, {"compare_all": True}])
def test_contradictions_of_an_update_are_told(more: dict[str, bool]) -> None:
    with pytest.raises(Usage, match="compares all, and sends what differs"):
        upload("source", "https://localhost/images/x", update=True, **more)  # type: ignore[arg-type]


def test_stream_is_no_source_of_an_update(daemon: Daemon, target: Image, tls: Settings) -> None:
    with pytest.raises(Usage, match="reads the image twice"):
        upload(io.BytesIO(bytes(512)), daemon.url(target.ticket), settings=tls, size=512, update=True, format="raw")


# Downloads


def test_only_blocks_that_differ_are_received(url: str, copy: Path, source: Path, settings: Settings) -> None:
    with copy.open("r+b") as f:
        before = os.fstat(f.fileno()).st_ino
    done = download(url, copy, settings=settings, update=True)
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_ino == before
    assert done.progress.data < 2 * BLOCK + MiB
    assert done.progress.done == SIZE
    assert done.checksum == checksum(copy)


@pytest.mark.parametrize("size", [0, MiB, SIZE - 1, SIZE + 9 * MiB])
def test_file_gets_the_size_of_the_image(url: str, copy: Path, source: Path, tls: Settings, size: int) -> None:
    os.truncate(copy, size)
    download(url, copy, settings=tls, update=True, manifest=copy.with_name("manifest"))
    assert copy.read_bytes() == source.read_bytes()
    assert run("verify", copy.with_name("manifest"), copy).status == 0


def test_qcow2_is_written_where_it_differs(
    daemon: Daemon, new_image: MakeImage, copy: Path, source: Path, tls: Settings
) -> None:
    for path in (copy, source):
        os.truncate(path, SIZE - 5)
    image = copy.with_suffix(".qcow2")
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", copy, image], check=True)
    url = daemon.url(new_image(path=source, ops=["read"]).ticket)
    assert download(url, image, settings=tls, update=True).progress.resumed > 20 * MiB
    assert checksum(image) == checksum(source)


def test_qcow2_of_another_size_is_told(url: str, tmp_path: Path, tls: Settings) -> None:
    image = tmp_path / "copy.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "1M"], check=True)
    with pytest.raises(LocalError, match="has 41943045: qemu-img resize"):
        download(url, image, settings=tls, update=True)


def test_device_is_written_where_it_differs(
    url: str, source: Path, tls: Settings, make_storage: Callable[[StorageType], Storage]
) -> None:
    device = make_storage(next(t for t in STORAGE_TYPES if t.is_block)).make(44 * MiB)
    with device.open("r+b") as f:
        f.write(base(source.with_name("base")).read_bytes() + b"\xff" * (44 * MiB - SIZE))
    assert download(url, device, settings=tls, update=True).progress.resumed > 20 * MiB
    assert device.read_bytes() == source.read_bytes() + b"\xff" * (44 * MiB - SIZE)


def test_missing_file_is_told(url: str, tmp_path: Path, tls: Settings) -> None:
    with pytest.raises(LocalError, match=r"there is no .*nothing to update: download it without --update first"):
        download(url, tmp_path / "nothing", settings=tls, update=True)


@pytest.mark.parametrize("name", ["copy.raw.gz", "copy.vmdk"])
def test_other_files_are_not_updated(url: str, tmp_path: Path, tls: Settings, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(Usage, match="what differs is written into a raw or qcow2 file"):
        download(url, tmp_path / name, settings=tls, update=True)


@pytest.mark.parametrize("more", [{"dirty": True}, {"compress": True}, {"restart": True}])
def test_contradictions_are_told(url: str, copy: Path, tls: Settings, more: dict[str, bool]) -> None:
    with pytest.raises(Usage):
        download(url, copy, settings=tls, update=True, **more)  # type: ignore[arg-type]


def test_stream_and_image_on_ceph_are_not_updated(url: str, tls: Settings) -> None:
    for target in (io.BytesIO(), "rbd:pool/image"):
        with pytest.raises(Usage, match="what differs is written into a raw or qcow2 file"):
            download(url, target, settings=tls, update=True)


def test_size_that_cant_be_changed_is_told(
    url: str, copy: Path, tls: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "truncate", refuse)
    with pytest.raises(LocalError, match=r"can't change the size of .*copy: File too large"):
        download(url, copy, settings=tls, update=True)


def test_interrupted_update_of_a_file_goes_on(
    daemon: Daemon, copy: Path, new_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExistingImage, "portion", BLOCK)
    image = new_image(pattern(SIZE, 5), ops=["read"])
    budgets = iter([20 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{image.ticket}"
        options: list[str | Path] = [
            "download",
            "--no-local",
            "--connections",
            "1",
            "--retry-for",
            "0",
            "--cafile",
            daemon.cafile,
        ]
        run(*options, "--update", url, copy).failed_with("copy is incomplete .*: the same command continues", 4)
    settings = Settings(cafile=str(daemon.cafile), local=False)
    assert download(daemon.url(image.ticket), copy, settings=settings, update=True).progress.resumed >= 12 * MiB
    assert copy.read_bytes() == image.content()


@pytest.mark.parametrize("seed", range(PAIRS))
def test_random_pairs_become_equal(
    daemon: Daemon, new_image: MakeImage, tmp_path: Path, tls: Settings, seed: int
) -> None:
    choice = random.Random(seed)
    size = choice.randrange(1, 30 * MiB)

    def pieces() -> dict[int, bytes]:
        found = (choice.randrange(size) for _ in range(choice.randrange(8)))
        return {at: pattern(min(choice.randrange(1, 5 * MiB), size - at), choice.randrange(3)) for at in found}

    shared = pieces()
    here, there = tmp_path / "here", tmp_path / "there"
    for path in (here, there):
        with path.open("wb") as f:
            f.truncate(size)
            for at, data in (shared | pieces()).items():
                f.seek(at)
                f.write(data)
    wanted = here.read_bytes()
    image = new_image(path=there)
    if seed % 2:
        upload(here, daemon.url(image.ticket), settings=tls, update=True)
        assert there.read_bytes() == wanted
    else:
        download(daemon.url(image.ticket), here, settings=tls, update=True)
        assert here.read_bytes() == there.read_bytes()
