# SPDX-License-Identifier: Apache-2.0
"""Uploads that are continued by what the server has on record, from any machine that has the source."""

import asyncio
import io
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import (
    Progress,
    Settings,
    StateMismatch,
    StorageFailed,
    Temporary,
    Uploaded,
    download,
    upload,
)
from imageio_daemon.client.local.source import FileSource
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.transfer import earlier, sender
from imageio_daemon.client.transfer.earlier import READ_SAMPLE, SAMPLE, sample
from imageio_daemon.client.transfer.equality import Equality
from imageio_daemon.client.transfer.plan import Unit
from imageio_daemon.client.transfer.progress import Phase
from imageio_daemon.client.unflushed import new_ranges
from imageio_daemon.image.ranges import RangeSet
from tests.client.proxy import Proxy
from tests.examples.programs import ScriptedServer, answer
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import Image, KiB, MakeImage, MiB, pattern

SIZE = 24 * MiB
#: What the first connection of an interrupted upload carries.
BUDGET = 13 * MiB


@pytest.fixture(scope="session")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon that keeps records."""
    with Daemon(certificates, {"daemon": {"state_dir": STATE}}) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut images in many units and short requests, as slow links do."""
    monkeypatch.setattr(FileSource, "portion", 4 * MiB)
    monkeypatch.setattr(sender, "SHORT", 0)


@pytest.fixture
def settings(daemon: Daemon) -> Settings:
    """One connection that is not made anew."""
    return Settings(cafile=str(daemon.cafile), local=False, retry_for=0, connections=1)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A source without zeros."""
    source = tmp_path / "source"
    source.write_bytes(pattern(SIZE))
    return source


@pytest.fixture
def interrupted(
    daemon: Daemon, full: Path, settings: Settings, new_image: MakeImage, tmp_path: Path
) -> tuple[str, Image]:
    """The URL and the target of an upload that was broken in its middle. Nothing is left on this side."""
    target = new_image(size=SIZE)
    budgets = iter([BUDGET])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"
        with pytest.raises(Temporary):
            upload(full, url, settings=settings, checkpoint=0)
    return daemon.url(target.ticket), target


def test_only_the_rest_is_sent(interrupted: tuple[str, Image], full: Path, settings: Settings) -> None:
    url, target = interrupted
    done = upload(full, url, settings=settings).progress
    assert BUDGET - 3 * MiB < done.resumed < BUDGET
    assert done.data == SIZE - done.resumed
    assert done.durable == SIZE
    assert target.content() == full.read_bytes()


def test_another_copy_of_the_source_goes_on(
    interrupted: tuple[str, Image], full: Path, settings: Settings, tmp_path: Path
) -> None:
    """As on another machine: neither the path nor the time of the source is known there."""
    url, target = interrupted
    copy = tmp_path / "elsewhere" / "copy"
    copy.parent.mkdir()
    copy.write_bytes(full.read_bytes())
    assert upload(copy, url, settings=settings).progress.resumed > 8 * MiB
    assert target.content() == full.read_bytes()


def test_another_ticket_goes_on_and_so_does_the_next_upload_with_it(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, settings: Settings
) -> None:
    """The record of the new ticket has what it has sent, and the state of this host all."""
    _, target = interrupted
    ticket = daemon.add_ticket(target.path, SIZE)
    budgets = iter([5 * MiB])
    told: list[Progress] = []
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{ticket}"
        with pytest.raises(Temporary):
            upload(full, url, settings=settings, checkpoint=0, progress=told.append)
    before = told[-1].durable
    assert before is not None
    assert before > told[-1].resumed > BUDGET - 3 * MiB
    assert upload(full, daemon.url(ticket), settings=settings).progress.resumed == before
    assert target.content() == full.read_bytes()


def test_interrupted_comparison_leaves_the_state_as_it_is(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, settings: Settings, states: Path
) -> None:
    url, _ = interrupted
    (state,) = states.iterdir()
    other = state.rename(state.with_name(state.name.replace("-", "-0")))
    before = other.read_text()

    def cancel(progress: Progress) -> None:
        if progress.phase == Phase.COMPARING:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        upload(full, url, settings=settings, progress=cancel)
    assert list(states.iterdir()) == [other]
    assert other.read_text() == before


def test_full_storage_keeps_what_it_has_taken(
    daemon: Daemon, settings: Settings, full: Path, small_filesystem: Path
) -> None:
    target = small_filesystem / "target"
    target.touch()
    url = daemon.url(daemon.add_ticket(target, SIZE))
    told: list[Progress] = []
    with pytest.raises(StorageFailed):
        upload(full, url, settings=settings, room_check=False, progress=told.append)
    assert told[-1].durable == told[-1].data > 0
    subprocess.run(["mount", "-o", "remount,size=64M", small_filesystem], check=True)
    done = upload(full, url, settings=settings)
    assert done.progress.resumed == told[-1].durable
    assert target.read_bytes() == full.read_bytes()


def test_restart_sends_all(interrupted: tuple[str, Image], full: Path, settings: Settings) -> None:
    url, target = interrupted
    done = upload(full, url, settings=settings, restart=True).progress
    assert (done.resumed, done.data) == (0, SIZE)
    assert target.content() == full.read_bytes()


def test_upload_that_was_complete_sends_nothing(interrupted: tuple[str, Image], full: Path, settings: Settings) -> None:
    url, target = interrupted
    upload(full, url, settings=settings)
    done = upload(full, url, settings=settings, verify=True).progress
    assert (done.resumed, done.data, done.zero) == (SIZE, 0, 0)
    assert target.content() == full.read_bytes()


def test_another_source_is_refused_before_anything_is_sent(
    interrupted: tuple[str, Image], full: Path, settings: Settings
) -> None:
    url, target = interrupted
    before = target.content()
    full.write_bytes(pattern(SIZE, 1))
    with pytest.raises(StateMismatch, match=r"bytes from \d+ to \d+, .* not those of this source.* --restart sends"):
        upload(full, url, settings=settings)
    assert target.content() == before
    upload(full, url, settings=settings, restart=True)
    assert target.content() == full.read_bytes()


def test_new_file_of_the_same_name_gets_all(interrupted: tuple[str, Image], full: Path, settings: Settings) -> None:
    url, target = interrupted
    os.truncate(target.path, 0)
    os.truncate(target.path, SIZE)
    with pytest.raises(StateMismatch):
        upload(full, url, settings=settings)
    assert upload(full, url, settings=settings, restart=True).progress.data == SIZE
    assert target.content() == full.read_bytes()


@pytest.mark.parametrize("seed", range(4))
def test_image_of_data_and_zeros_is_complete_after_many_interruptions(
    daemon: Daemon, settings: Settings, tmp_path: Path, new_image: MakeImage, seed: int
) -> None:
    choice = random.Random(seed)
    source = tmp_path / "source"
    with source.open("wb") as f:
        f.truncate(SIZE + choice.randrange(4 * KiB))
        for number in range(8):
            f.seek(choice.randrange(SIZE - 3 * MiB))
            f.write(pattern(choice.randrange(3 * MiB), number))
            f.write(bytes(choice.randrange(MiB)))
    target = new_image(b"\xff" * source.stat().st_size, sparse=bool(seed % 2))
    both = Settings(cafile=str(daemon.cafile), local=False, retry_for=0, connections=2)
    done: Uploaded | None = None
    with Proxy(daemon.port, lambda: choice.randrange(2000, 6 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"
        for _ in range(1000):
            try:
                done = upload(source, url, settings=both, checkpoint=0)
                break
            except Temporary:
                continue
    assert done
    assert done.progress.resumed > 0
    assert target.content() == source.read_bytes()


# The proof


def test_all_is_compared_if_asked_for(
    interrupted: tuple[str, Image], full: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, target = interrupted
    monkeypatch.setattr(earlier, "SAMPLES", 1)
    monkeypatch.setattr(earlier, "SAMPLE", 4 * KiB)
    monkeypatch.setattr("random.random", lambda: 0.0)
    with target.path.open("r+b") as f:
        f.seek(6 * MiB + 77)
        f.write(bytes(1))
    with pytest.raises(StateMismatch, match=f"from {4 * MiB} to {8 * MiB}"):
        upload(full, url, settings=settings, compare_all=True)
    upload(full, url, settings=settings)


def test_block_device_is_compared_as_a_whole(
    interrupted: tuple[str, Image], full: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, target = interrupted
    monkeypatch.setattr("imageio_daemon.client.local.source.identity", lambda _: None)
    compared: list[int] = []
    compare = Equality.compare

    def counted(self: Equality, image: RemoteImage, unit: Unit, buffer: memoryview) -> RangeSet:
        compared.append(unit.end - unit.start)
        return compare(self, image, unit, buffer)

    monkeypatch.setattr(Equality, "compare", counted)
    done = upload(full, url, settings=settings, state=False).progress
    assert sum(compared) == done.resumed
    assert target.content() == full.read_bytes()


def sampled(source: Path, done: list[tuple[int, int]], size: int = SAMPLE) -> list[tuple[int, int]]:
    opened = FileSource(source)
    chosen = sample(opened, new_ranges(done), size)
    opened.close()
    return chosen.pieces()


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """16 GiB, of which 16 MiB are data."""
    path = tmp_path / "sparse"
    with path.open("wb") as f:
        f.truncate(16 * 1024 * MiB)
        for number in range(16):
            f.seek(number * 1024 * MiB + 512 * MiB)
            f.write(pattern(MiB))
    return path


def test_sample_has_both_ends_of_what_was_sent(sparse: Path) -> None:
    chosen = new_ranges(sampled(sparse, [(0, 5 * 1024 * MiB + 1)]))
    assert list(chosen.parts(0, 2 * MiB)) == [(0, 2 * MiB, True)]
    assert next(iter(chosen.parts(5 * 1024 * MiB, 5 * 1024 * MiB + 1)))[2]


def test_sample_is_where_data_is(sparse: Path) -> None:
    chosen = sampled(sparse, [(0, 16 * 1024 * MiB)])
    for number in range(16):
        at = number * 1024 * MiB + 512 * MiB
        assert any(start < at + MiB and end > at for start, end in chosen)


def test_sample_is_part_of_what_was_sent(sparse: Path) -> None:
    done = [(4 * KiB, 8 * KiB), (100 * MiB, 101 * MiB + 5), (512 * MiB, 512 * MiB + 4 * KiB + 3)]
    chosen = new_ranges(sampled(sparse, done))
    assert chosen.pieces() == done


def test_sample_that_is_read_back_is_short(full: Path) -> None:
    assert sum(end - start for start, end in sampled(full, [(0, SIZE)], READ_SAMPLE)) < 2 * MiB


def test_samples_are_begun_where_checksums_can(full: Path) -> None:
    assert all(start % 4096 == 0 for start, _ in sampled(full, [(8192, SIZE - 1)]))


def test_checksum_of_another_part_is_no_proof(full: Path, settings: Settings) -> None:
    told = answer("200 OK", {"features": ["checksum_range", "durable", "flush", "zero"]})
    size = answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")
    durable = answer("200 OK", [{"start": 0, "length": SIZE, "durable": True}])
    whole = answer("200 OK", {"algorithm": "blake2b", "block_size": 4 * MiB, "checksum": "x"})
    with ScriptedServer(told, size, durable, whole) as server, pytest.raises(Exception, match="of another part"):
        upload(full, server.url, settings=settings, state=False)


def test_record_that_is_gone_is_an_empty_one(full: Path) -> None:
    ok = answer("200 OK")
    told = answer("200 OK", {"features": ["durable", "flush", "zero"]})
    size = answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")
    with ScriptedServer(told, size, answer("404 Not Found", "no", "Connection: close"), *[ok] * 26) as server:
        done = upload(full, server.url, settings=Settings(connections=1), state=False).progress
    assert (done.data, done.durable) == (SIZE, None)


@pytest.fixture(params=["file", "stream"])
def upload_odd(request: pytest.FixtureRequest, full: Path, settings: Settings) -> Callable[[str], Uploaded]:
    """Upload an image of whole pages and one byte, from a file or a stream."""
    with full.open("ab") as f:
        f.write(b"!")

    def run(url: str) -> Uploaded:
        if request.param == "file":
            return upload(full, url, settings=settings, checkpoint=0, state=False)
        with full.open("rb") as stream:
            return upload(stream, url, settings=settings, size=SIZE + 1, checkpoint=0)

    return run


def test_last_byte_that_was_only_tried_is_sent(
    daemon: Daemon, full: Path, upload_odd: Callable[[str], Uploaded], new_image: MakeImage
) -> None:
    target = new_image(size=SIZE + 1)
    budgets = iter([BUDGET])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy, pytest.raises(Temporary):
        upload_odd(f"https://localhost:{proxy.port}/images/{target.ticket}")
    assert upload_odd(daemon.url(target.ticket)).progress.resumed > BUDGET - 3 * MiB
    assert target.content() == full.read_bytes()


# Input that can be read once


def test_input_that_is_read_again_from_its_beginning_goes_on(
    interrupted: tuple[str, Image], full: Path, settings: Settings
) -> None:
    url, target = interrupted
    with full.open("rb") as stream:
        done = upload(stream, url, settings=settings, size=SIZE, verify=True).progress
    assert BUDGET - 3 * MiB < done.resumed < BUDGET
    assert target.content() == full.read_bytes()


def test_another_input_is_refused(interrupted: tuple[str, Image], full: Path, settings: Settings) -> None:
    url, target = interrupted
    other = bytearray(full.read_bytes())
    other[5 * MiB] ^= 1
    with pytest.raises(StateMismatch, match=f"from {4 * MiB} to {8 * MiB}, .* --restart"):
        upload(io.BytesIO(other), url, settings=settings, size=SIZE)
    upload(io.BytesIO(other), url, settings=settings, size=SIZE, restart=True)
    assert target.content() == other


# Restarts of the daemon


def restarting(daemon: Daemon, *, kill: bool) -> Callable[[Progress], None]:
    """Return a report of progress that restarts a daemon in the middle of the transfer, once."""
    restarted: list[bool] = []

    def report(progress: Progress) -> None:
        if progress.data > SIZE // 4 and not restarted:
            restarted.append(True)
            if kill:
                daemon.kill()
            else:
                daemon.stop()
            daemon.restart()

    return report


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("local", [False, True], ids=["tls", "unix"])
def test_upload_goes_on_through_a_restart(
    own: Daemon,
    full: Path,
    tmp_path: Path,
    kill: bool,
    local: bool,
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * SIZE)
    url = own.url(own.add_ticket(target, SIZE))
    settings = Settings(cafile=str(own.cafile), local=local, connections=2)
    done = upload(full, url, settings=settings, progress=restarting(own, kill=kill), verify=True)
    assert done.progress.done == SIZE
    assert target.read_bytes() == full.read_bytes()


def test_download_goes_on_through_a_restart(own: Daemon, full: Path, tmp_path: Path) -> None:
    url = own.url(own.add_ticket(full, SIZE))
    settings = Settings(cafile=str(own.cafile), local=False, connections=2)
    download(url, tmp_path / "copy", settings=settings, progress=restarting(own, kill=False), verify=True)
    assert (tmp_path / "copy").read_bytes() == full.read_bytes()


def test_progress_tells_what_was_there(interrupted: tuple[str, Image], full: Path, settings: Settings) -> None:
    told: list[Progress] = []
    done = upload(full, interrupted[0], settings=settings, progress=told.append).progress
    assert told[0].durable is not None
    assert all(one.done <= SIZE for one in told)
    assert done.done == SIZE


def test_input_that_is_read_once_goes_on_through_a_restart(own: Daemon, full: Path, tmp_path: Path) -> None:
    """A daemon that ends in order flushes, and its record tells that nothing has to be sent again."""
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * SIZE)
    url = own.url(own.add_ticket(target, SIZE))
    settings = Settings(cafile=str(own.cafile), local=False, connections=2)
    with full.open("rb") as stream:
        upload(stream, url, settings=settings, size=SIZE, progress=restarting(own, kill=False))
    assert target.read_bytes() == full.read_bytes()
