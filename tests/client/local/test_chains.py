# SPDX-License-Identifier: Apache-2.0
"""qcow2 images above other files: the C extension and qemu-nbd give the same source."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imageio_daemon.client.errors import LocalError, Stopped
from imageio_daemon.client.local.image_source import FormatSource
from imageio_daemon.client.local.qcow2 import qcow2_source
from imageio_daemon.client.local.qemu import QemuSource
from imageio_daemon.client.local.source import Source
from tests.client.local.test_formats import converted, qemu_img
from tests.support.images import KiB, MiB, pattern
from tests.support.locks import NO_WRITE, READ, locks, served
from tests.support.realstorage import missing, mounted

Open = Callable[..., Source]


@pytest.fixture(params=["C", "qemu-nbd"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Open an image, which may be `shared`."""
    return qcow2_source if request.param == "C" else partial(QemuSource, format_name="qcow2")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "disk").write_bytes(pattern(4 * MiB))
    return converted(tmp_path / "below" / "disk", "qcow2")


@pytest.fixture
def top(tmp_path: Path, base: Path) -> Path:
    """An image above one in another directory, by a relative name."""
    qemu_img("create", "-f", "qcow2", "-b", f"below/{base.name}", "-F", "qcow2", tmp_path / "top.qcow2")
    return tmp_path / "top.qcow2"


def content(source: Source) -> bytes:
    found = bytearray(source.size)
    source.read(0, memoryview(found))
    return bytes(found)


def test_file_below_is_read(opened: Open, top: Path) -> None:
    with contextlib.closing(opened(top)) as source:
        assert content(source) == pattern(4 * MiB)


def test_file_below_that_changes_is_told(opened: Open, top: Path, base: Path) -> None:
    with contextlib.closing(opened(top)) as source:
        source.check()
        os.utime(base)
        with pytest.raises(LocalError, match=rf"{base} was changed"):
            source.check()


def test_image_is_known_again(opened: Open, top: Path, base: Path) -> None:
    with contextlib.closing(qcow2_source(top)) as source:
        first = source.identity
    with contextlib.closing(opened(top)) as source:
        assert source.identity == first is not None
    os.utime(base)
    with contextlib.closing(opened(top)) as source:
        assert source.identity != first


def test_file_below_that_another_program_writes_is_refused(opened: Open, tmp_path: Path, base: Path) -> None:
    base, top = base.with_name("disk"), tmp_path / "top.qcow2"  # of qcow2 files qemu tells it in its own words
    qemu_img("create", "-f", "qcow2", "-b", base, "-F", "raw", top)
    with served(base, "raw"):
        with pytest.raises(LocalError, match=rf"{base} is in use by qemu-nbd \(pid \d+\): .*say --shared"):
            opened(top)
        opened(top, shared=True).close()


def test_file_below_is_not_written_while_it_is_read(opened: Open, top: Path, base: Path) -> None:
    with contextlib.closing(opened(top)):
        assert {READ, NO_WRITE} <= locks(base)
    assert locks(base) == set()


def test_file_below_that_is_mounted_is_refused(opened: Open, tmp_path: Path) -> None:
    if reason := missing("ext4"):
        pytest.skip(reason)
    with mounted("ext4", tmp_path) as place:
        base, top = place.with_suffix(".img"), tmp_path / "top.qcow2"
        qemu_img("create", "-f", "qcow2", "-u", "-b", base, "-F", "raw", top, "1M")
        with pytest.raises(LocalError, match=rf"{base} is mounted on {place}"):
            opened(top)
        opened(top, shared=True).close()


@pytest.mark.parametrize("which", ["top", "base"])
def test_file_that_was_cut_is_refused(opened: Open, top: Path, base: Path, which: str) -> None:
    os.truncate(base, 2 * MiB)
    with pytest.raises(LocalError, match=rf"{base} is damaged: its data goes on behind its end at byte 2097152"):
        opened(base if which == "base" else top)


def test_place_of_damage_is_told(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"".join(os.urandom(32 * KiB) + bytes(32 * KiB) for _ in range(32)))
    image = converted(tmp_path / "disk", "qcow2", "-c")
    with image.open("r+b") as file:
        file.seek(image.stat().st_size // 2)
        file.write(b"\xff" * 64 * KiB)
    damaged = r"can't read .*disk\.qcow2 at byte \d+: .*: it is damaged there, or its storage is"
    with contextlib.closing(opened(image)) as source, pytest.raises(LocalError, match=damaged):
        content(source)


def test_nothing_is_read_after_stop(opened: Open, top: Path) -> None:
    with contextlib.closing(opened(top)) as source:
        assert isinstance(source, FormatSource)
        source.stop()
        with pytest.raises(Stopped):
            content(source)
        with pytest.raises(Stopped):
            list(source.extents())
