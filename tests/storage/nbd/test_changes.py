# SPDX-License-Identifier: Apache-2.0
"""What `rbd diff` tells, as extents."""

import asyncio
import errno
import os
import subprocess
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.errors import NotFound, StorageError, Unavailable
from imageio_daemon.image.extents import Extent
from imageio_daemon.runtime.background import in_thread
from imageio_daemon.storage.nbd import changes
from imageio_daemon.storage.nbd.changes import DiffParser, command, extents
from imageio_daemon.storage.operation import Operation
from imageio_daemon.units import MiB
from tests.support.fakeceph import FakeCeph, diff
from tests.support.polling import eventually, eventually_async

SIZE = 64 * MiB


@pytest.fixture
def ceph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCeph:
    made = FakeCeph(tmp_path / "ceph")
    monkeypatch.setenv("PATH", made.path)
    return made


async def told(offset: int = 0, end: int = SIZE, *, words: list[str] | None = None, image: str = "x") -> list[Extent]:
    op = Operation()
    found: list[Extent] = []
    async with aclosing(extents(words or command(["--image=x"], "s"), image, op, offset, end)) as lists:
        async for some in lists:
            found += some
    assert not op.in_storage
    return found


def dirty(start: int, length: int, *, zero: bool = False) -> Extent:
    return Extent(start, length, zero=zero, dirty=True)


async def test_what_is_not_told_has_not_changed(ceph: FakeCeph) -> None:
    ceph.answer(diff((4 * MiB, 4 * MiB, True), (8 * MiB, MiB, False), (60 * MiB, 4 * MiB, True)))
    assert await told() == [
        Extent(0, 4 * MiB),
        dirty(4 * MiB, 4 * MiB),
        dirty(8 * MiB, MiB, zero=True),
        Extent(9 * MiB, 51 * MiB),
        dirty(60 * MiB, 4 * MiB),
    ]
    assert ceph.asked() == [["diff", "--format=json", "--whole-object", "--from-snap=s", "--image=x"]]


async def test_no_change_is_one_extent(ceph: FakeCeph) -> None:
    ceph.answer(diff())
    assert await told() == [Extent(0, SIZE)]


async def test_a_range_is_cut_out(ceph: FakeCeph) -> None:
    ceph.answer(diff((0, 4 * MiB, True), (8 * MiB, 8 * MiB, True)))
    assert await told(2 * MiB, 10 * MiB) == [
        dirty(2 * MiB, 2 * MiB),
        Extent(4 * MiB, 4 * MiB),
        dirty(8 * MiB, 2 * MiB),
    ]


async def test_long_answers_come_in_pieces(ceph: FakeCeph) -> None:
    ceph.answer(diff(*((2 * n * 4096, 4096, True) for n in range(8000))))
    found = await told()
    assert sum(extent.dirty for extent in found) == 8000
    assert found[-1].end == SIZE


async def test_snapshot_that_is_not_there_is_not_found(ceph: FakeCeph) -> None:
    ceph.answer("", "rbd: diff error: (2) No such file or directory", errno.ENOENT)
    with pytest.raises(NotFound, match="snapshot"):
        await told()


@pytest.mark.parametrize(
    ("said", "status", "number"),
    [
        ("rbd: couldn't connect to the cluster!", errno.ENOENT, errno.ENOENT),
        ("rbd: error opening image x: (1) Operation not permitted", errno.EPERM, errno.EPERM),
        ("it does not tell", 255, errno.EIO),
    ],
)
async def test_failure_is_told_with_what_it_says(ceph: FakeCeph, said: str, status: int, number: int) -> None:
    ceph.answer("", said, status)
    with pytest.raises(StorageError) as failure:
        await told()
    assert failure.value.errno == number
    assert said in str(failure.value)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON}",
        '[{"offset":0,"length":1}]',
        '[{"offset":"0","length":1,"exists":"true"}]',
        '[{"offset":true,"length":1,"exists":"true"}]',
        '[{"offset":0,"length":1,"exists":"maybe"}]',
        '[{"offset":0,"length":0,"exists":"true"}]',
        '[{"offset":-1,"length":2,"exists":"true"}]',
        '[{"offset":9223372036854775807,"length":9,"exists":"true"}]',
        diff((4096, 4096, True), (0, 4096, True)),
        "{" + "a" * 2000,
        "{" + "a" * 2000 + "}",
        diff((0, 4096, True)).removesuffix("]\n"),
        "",
    ],
)
async def test_answer_that_is_none_is_an_error(ceph: FakeCeph, text: str) -> None:
    ceph.answer(text)
    with pytest.raises(StorageError) as failure:
        await told()
    assert failure.value.errno == errno.EPROTO


def test_pieces_of_any_size_say_the_same() -> None:
    text = diff((0, 4096, True), (8192, 4096, False)).encode()
    for size in range(1, len(text)):
        parser = DiffParser()
        found = [e for start in range(0, len(text), size) for e in parser.feed(text[start : start + size])]
        assert found == [(0, 4096, True), (8192, 12288, False)]
        assert parser.is_complete


async def test_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StorageError, match="is ceph-common installed"):
        await told()


async def test_program_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rbd").write_text("#!/never\n")
    (tmp_path / "rbd").chmod(0o755)
    with pytest.raises(StorageError):
        await told(words=[str(tmp_path / "rbd")])


def hanging(directory: Path) -> list[str]:
    """Return a command that writes its number to a file, `pid`, and hangs."""
    program = directory / "rbd"
    program.write_text(f"#!/bin/sh\necho $$ >{directory}/new; mv {directory}/new {directory}/pid\nexec sleep 99\n")
    program.chmod(0o755)
    return [str(program)]


def has_ended(directory: Path) -> bool:
    """Tell whether the process of such a command has been there and is gone."""
    if not (directory / "pid").exists():
        return False
    try:
        os.kill(int((directory / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


async def test_one_that_hangs_is_killed_when_nobody_asks_any_more(tmp_path: Path) -> None:
    asking = asyncio.create_task(told(words=hanging(tmp_path)))
    await eventually_async((tmp_path / "pid").exists)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    # A moment later if the thread that has started it does not know that yet.
    await eventually_async(lambda: has_ended(tmp_path))


async def test_one_that_is_being_started_is_killed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, started = threading.Event(), subprocess.Popen

    def start(*words: Any, **options: Any) -> "subprocess.Popen[bytes]":
        begun.set()
        process = started(*words, **options)
        eventually((tmp_path / "pid").exists, "it runs")
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    asking = asyncio.create_task(told(words=hanging(tmp_path)))
    await in_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await in_thread(lambda: eventually(lambda: has_ended(tmp_path), "it is killed"))


async def test_no_more_than_some_run_at_a_time(ceph: FakeCeph, monkeypatch: pytest.MonkeyPatch) -> None:
    ceph.answer(diff())
    monkeypatch.setattr(changes, "MOST", 1)
    changes._places.take("another image")
    try:
        with pytest.raises(Unavailable):
            await told()
    finally:
        changes._places.leave("another image")
    assert await told() == [Extent(0, SIZE)]


async def test_an_image_leaves_some_for_others(ceph: FakeCeph) -> None:
    ceph.answer(diff())
    for _ in range(changes.MOST_OF_IMAGE):
        changes._places.take("x")
    try:
        with pytest.raises(Unavailable):
            await told()
        assert await told(image="y") == [Extent(0, SIZE)]
    finally:
        for _ in range(changes.MOST_OF_IMAGE):
            changes._places.leave("x")
