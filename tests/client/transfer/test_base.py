# SPDX-License-Identifier: Apache-2.0
"""Updates by the bitmap of the source, where a checksum proves that the target is its base."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import Refused, Settings, Uploaded, Usage, checksum, copy, upload
from imageio_daemon.client.local.nbd_image import NbdImage
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.transfer import base as base_module
from tests.client.transfer.test_continued_download import without
from tests.client.transfer.test_dirty import guest_writes, qemu_img
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.nbdservers import NbdServer, make_qcow2, qemu_nbd

SIZE = 64 * MiB
BLOCK = 4 * MiB
#: Random pairs of images; the campaign has IMAGEIO_TEST_LONG=1.
PAIRS = 100 if os.environ.get("IMAGEIO_TEST_LONG") else 3

pytestmark = pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="qemu-nbd is not installed")

#: Makes the image at a URL read as the source is now, by its bitmap and a checksum.
From = Callable[[str, str], Uploaded]
Update = Callable[[], Uploaded]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The source, with a bitmap of what is written from now on."""
    return make_marked(tmp_path / "disk.qcow2")


@pytest.fixture
def target(disk: Path, tmp_path: Path) -> Path:
    """A copy of the base."""
    return raw(disk, tmp_path / "target")


@pytest.fixture
def base(target: Path) -> str:
    return checksum(target)


@pytest.fixture(params=["server", "qcow2", "nbd"])
def update_from(request: pytest.FixtureRequest, daemon: Daemon, tls: Settings, disk: Path) -> Iterator[From]:
    """Read the source from a server, from its file, and from an export."""
    with ExitStack() as stack:

        def serve() -> NbdServer:
            return stack.enter_context(qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=since-full"))

        def from_server(url: str, base: str) -> Uploaded:
            ticket = daemon.add_ticket(disk, SIZE, url=serve().url, ops=["read"], dirty=True)
            return copy(daemon.url(ticket), url, settings=tls, update=True, base=base)

        def from_image(url: str, base: str) -> Uploaded:
            source = disk if request.param == "qcow2" else serve().uri
            return upload(source, url, settings=tls, update=True, base=base, bitmap="since-full")

        yield from_server if request.param == "server" else from_image


@pytest.fixture
def update(daemon: Daemon, update_from: From, target: Path, base: str) -> Update:
    """Update the target from the source, as it is now."""
    return lambda: update_from(daemon.url(daemon.add_ticket(target, SIZE)), base)


def make_marked(path: Path) -> Path:
    """Make a qcow2 with data, and with a bitmap of what is written from now on."""
    make_qcow2(path, SIZE)
    guest_writes(path, "write -P 1 0 21M", "write -P 2 40M 9M", "write -P 3 60M 4M")
    qemu_img("bitmap", "--add", "-f", "qcow2", path, "since-full")
    return path


def raw(disk: Path, path: Path) -> Path:
    qemu_img("convert", "-f", "qcow2", "-O", "raw", disk, path)
    return path


def change(disk: Path) -> None:
    """Write data over data, zeros over data, and data into a hole."""
    guest_writes(disk, "write -P 7 1M 300k", "write -z 8M 4M", "write -P 8 30M 3M")


def listed(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the bytes of which servers tell digests, and those of the source that are read."""
    counts = {"blocks": 0, "read": 0}
    blocks = RemoteImage.blocks

    def of_blocks(self: RemoteImage, algorithm: str, size: int, part: tuple[int, int]) -> object:
        counts["blocks"] += part[1]
        return blocks(self, algorithm, size, part)

    def counted(read: Callable[[Any, int, memoryview], None]) -> Callable[[Any, int, memoryview], None]:
        def reading(image: object, offset: int, buffer: memoryview) -> None:
            counts["read"] += len(buffer)
            read(image, offset, buffer)

        return reading

    monkeypatch.setattr(RemoteImage, "blocks", of_blocks)
    monkeypatch.setattr(RemoteImage, "read_into", counted(RemoteImage.read_into))
    monkeypatch.setattr(NbdImage, "read", counted(NbdImage.read))
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
    sampled = counts["blocks"] - SIZE  # by a server, or else read here
    assert sampled in (0, 2 * BLOCK), "all of the target, and the sample of the source"
    assert counts["read"] + sampled < 6 * BLOCK, "the sample, and where the source has changed and has data"


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


@pytest.mark.parametrize("place", ["26M", "37M"])
def test_data_that_a_late_bitmap_lacks_in_a_hole_is_found(
    disk: Path, update: Update, target: Path, tmp_path: Path, place: str
) -> None:
    """An image of 16 blocks is compared as a whole. The hole has 4 of them, and is one entry of the list of digests."""
    qemu_img("bitmap", "--remove", "-f", "qcow2", disk, "since-full")
    guest_writes(disk, f"write -P 9 {place} 1M")
    qemu_img("bitmap", "--add", "-f", "qcow2", disk, "since-full")
    update()
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


@pytest.mark.parametrize("update_from", ["server"], indirect=True)
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
