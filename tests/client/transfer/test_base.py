# SPDX-License-Identifier: Apache-2.0
"""Copies by the bitmap of the source, where a checksum proves that the target is its base."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from imageio_daemon.client import Refused, Settings, Uploaded, Usage, checksum, copy
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.transfer import base as base_module
from tests.client.transfer.test_continued_download import without
from tests.client.transfer.test_dirty import guest_writes, qemu_img
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.nbdservers import make_qcow2, qemu_nbd

SIZE = 64 * MiB
BLOCK = 4 * MiB
#: Random pairs of images; the campaign has IMAGEIO_TEST_LONG=1.
PAIRS = 100 if os.environ.get("IMAGEIO_TEST_LONG") else 3

pytestmark = pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="qemu-nbd is not installed")

#: Serves the source, with its bitmap, and tells the URL.
Serve = Callable[[], str]
Update = Callable[[], Uploaded]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The source, with a bitmap of what is written from now on."""
    disk = make_qcow2(tmp_path / "disk.qcow2", SIZE)
    guest_writes(disk, "write -P 1 0 21M", "write -P 2 40M 9M", "write -P 3 60M 4M")
    qemu_img("bitmap", "--add", "-f", "qcow2", disk, "since-full")
    return disk


@pytest.fixture
def target(disk: Path, tmp_path: Path) -> Path:
    """A copy of the base."""
    return raw(disk, tmp_path / "target")


@pytest.fixture
def base(target: Path) -> str:
    return checksum(target)


@pytest.fixture
def serve(daemon: Daemon, disk: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start() -> str:
            server = stack.enter_context(qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=since-full"))
            return daemon.url(daemon.add_ticket(disk, SIZE, url=server.url, ops=["read"], dirty=True))

        yield start


@pytest.fixture
def update(daemon: Daemon, tls: Settings, serve: Serve, target: Path, base: str) -> Update:
    """Update the target from the source, as it is now."""
    return lambda: copy(serve(), daemon.url(daemon.add_ticket(target, SIZE)), settings=tls, update=True, base=base)


def raw(disk: Path, path: Path) -> Path:
    qemu_img("convert", "-f", "qcow2", "-O", "raw", disk, path)
    return path


def change(disk: Path) -> None:
    """Write data over data, zeros over data, and data into a hole."""
    guest_writes(disk, "write -P 7 1M 300k", "write -z 8M 4M", "write -P 8 30M 3M")


def listed(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the bytes of which the source and the target tell digests, and those that are read."""
    counts = {"blocks": 0, "read": 0}
    blocks, read = RemoteImage.blocks, RemoteImage.read_into

    def of_blocks(self: RemoteImage, algorithm: str, size: int, part: tuple[int, int]) -> object:
        counts["blocks"] += part[1]
        return blocks(self, algorithm, size, part)

    def reading(self: RemoteImage, offset: int, buffer: memoryview) -> None:
        counts["read"] += len(buffer)
        read(self, offset, buffer)

    monkeypatch.setattr(RemoteImage, "blocks", of_blocks)
    monkeypatch.setattr(RemoteImage, "read_into", reading)
    return counts


def test_source_is_read_where_its_bitmap_tells(
    disk: Path,
    update: Update,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(disk)
    monkeypatch.setattr(base_module, "SAMPLES", 2)
    counts = listed(monkeypatch)
    done = update()
    wanted = raw(disk, tmp_path / "wanted")
    assert target.read_bytes() == wanted.read_bytes()
    assert done.checksum == checksum(wanted)
    assert done.progress.resumed == SIZE - 4 * BLOCK
    assert counts["read"] <= 3 * BLOCK, "of the source, where it has changed and has data"
    assert counts["blocks"] == SIZE + 2 * BLOCK, "all of the target, and the sample of the source"


def another_byte(target: Path) -> None:
    with target.open("r+b") as f:
        f.seek(50 * MiB)
        f.write(b"x")


def half_an_update(target: Path) -> None:
    with target.open("r+b") as f:
        f.seek(MiB)
        f.write(b"\x07" * 300 * 1024)


def another_image(target: Path) -> None:
    target.write_bytes(pattern(SIZE))


@pytest.mark.parametrize("spoil", [another_byte, half_an_update, another_image])
def test_target_that_is_not_the_base_is_compared_as_a_whole(
    disk: Path,
    update: Update,
    target: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(disk)
    spoil(target)
    update()
    assert "the target is not the base" in caplog.text
    assert target.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


def test_bitmap_that_began_after_the_base_is_not_believed(
    disk: Path,
    update: Update,
    target: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    qemu_img("bitmap", "--remove", "-f", "qcow2", disk, "since-full")
    guest_writes(disk, "write -P 9 42M 2M")
    qemu_img("bitmap", "--add", "-f", "qcow2", disk, "since-full")
    change(disk)
    update()
    assert "it began later" in caplog.text
    assert target.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()


@pytest.mark.parametrize("feature", [None, "extents", "checksum_blocks"])
def test_servers_that_cannot_tell_let_all_be_compared(
    daemon: Daemon,
    tls: Settings,
    new_image: MakeImage,
    target: Path,
    base: str,
    monkeypatch: pytest.MonkeyPatch,
    feature: str | None,
) -> None:
    source = new_image(pattern(SIZE), ops=["read"])
    if feature is not None:
        without(monkeypatch, feature)
    copy(daemon.url(source.ticket), daemon.url(daemon.add_ticket(target, SIZE)), settings=tls, update=True, base=base)
    assert target.read_bytes() == pattern(SIZE)


def test_refusal_of_the_bitmap_is_told(update: Update, monkeypatch: pytest.MonkeyPatch) -> None:
    extents = RemoteImage.extents

    def refused(self: RemoteImage, context: str = "zero") -> object:
        if context == "dirty":
            raise Refused("the bitmap is in use", 409)
        return extents(self, context)

    monkeypatch.setattr(RemoteImage, "extents", refused)
    with pytest.raises(Refused, match="the bitmap is in use"):
        update()


@pytest.mark.parametrize("more", [{"base": "0" * 64}, {"base": "sha256", "update": True}])
def test_base_without_an_update_or_a_checksum_is_told(more: dict[str, object]) -> None:
    with pytest.raises(Usage, match="base is for an update"):
        copy("https://a/images/x", "https://b/images/x", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(PAIRS))
def test_random_changes_of_source_and_target(
    disk: Path, update: Update, target: Path, tmp_path: Path, seed: int
) -> None:
    choice = random.Random(seed)

    def places() -> list[tuple[int, int]]:
        found = [
            (choice.randrange(0, SIZE, 512), choice.randrange(512, 5 * MiB, 512)) for _ in range(choice.randrange(6))
        ]
        return [(start, min(length, SIZE - start)) for start, length in found]

    written = [f"write -{choice.choice(['z', 'P 5'])} {start} {length}" for start, length in places()]
    if written:
        guest_writes(disk, *written)
    with target.open("r+b") as f:
        for start, length in places() if seed % 3 == 0 else []:
            f.seek(start)
            f.write(pattern(length, seed))
    update()
    assert target.read_bytes() == raw(disk, tmp_path / "wanted").read_bytes()
