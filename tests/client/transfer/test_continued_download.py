# SPDX-License-Identifier: Apache-2.0
"""Downloads that go on where an earlier one has ended."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    LocalError,
    Progress,
    Refused,
    Settings,
    StateMismatch,
    Temporary,
    checksum,
    download,
)
from imageio_daemon.client.local import qcow2
from imageio_daemon.client.local.target import NewFile
from imageio_daemon.client.server.abilities import Abilities
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.transfer import equality
from imageio_daemon.client.unflushed import new_ranges
from tests.client.proxy import Proxy
from tests.support.daemon import Daemon
from tests.support.images import Image, KiB, MakeImage, MiB, pattern
from tests.support.realstorage import missing, mounted

SIZE = 24 * MiB + 512
#: What the first connection of an interrupted download carries.
BUDGET = 13 * MiB
FORMATS = ("raw", "qcow2")

Interrupt = Callable[..., Path]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut images in many units, as slow links do."""
    monkeypatch.setattr(NewFile, "portion", 4 * MiB)
    monkeypatch.setattr(qcow2.NewQcow2, "portion", 4 * MiB)


@pytest.fixture
def settings(daemon: Daemon) -> Settings:
    """One connection that is not made anew."""
    return Settings(cafile=str(daemon.cafile), local=False, retry_for=0, connections=1)


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    """An image of data, a hole and data."""
    return new_image(pieces={0: pattern(10 * MiB), 12 * MiB: pattern(12 * MiB + 512, 1)}, size=SIZE, ops=["read"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "copies"
    directory.mkdir()
    return directory


@pytest.fixture
def interrupt(daemon: Daemon, image: Image, settings: Settings, directory: Path) -> Interrupt:
    """Interrupt the download of a file, and return its path."""

    def run(name: str = "copy.raw", budget: int = BUDGET, **more: object) -> Path:
        budgets = iter([budget])
        with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
            url = f"https://localhost:{proxy.port}/images/{image.ticket}"
            with pytest.raises(Temporary):
                download(url, directory / name, settings=settings, **({"checkpoint": 0} | more))  # type: ignore[arg-type]
        return directory / name

    return run


def content(copy: Path, name: str) -> bytes:
    """Return what a copy reads as."""
    if name == "raw":
        return copy.read_bytes()
    raw = copy.with_suffix(".out")
    subprocess.run(["qemu-img", "convert", "-f", name, "-O", "raw", copy, raw], check=True)
    data = raw.read_bytes()
    raw.unlink()
    return data


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("verify", [False, True])
def test_only_the_rest_is_received(
    daemon: Daemon, image: Image, settings: Settings, states: Path, interrupt: Interrupt, name: str, verify: bool
) -> None:
    copy = interrupt(f"copy.{name}")
    assert os.listdir(copy.parent) == [f"copy.{name}.part"]
    done = download(daemon.url(image.ticket), copy, settings=settings, verify=verify)
    assert BUDGET - 2 * MiB < done.progress.resumed <= BUDGET + 2 * MiB
    assert done.progress.data <= SIZE - 2 * MiB - (done.progress.resumed - 2 * MiB)
    assert done.checksum == (checksum(image.path) if verify else None)
    assert content(copy, name) == image.content()
    assert os.listdir(copy.parent) == [copy.name]
    assert not list(states.iterdir())


def test_nothing_is_left_without_a_state(interrupt: Interrupt, states: Path) -> None:
    copy = interrupt(state=False)
    assert not os.listdir(copy.parent)
    assert not states.exists()


def test_another_state_directory_is_used(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, tmp_path: Path, states: Path
) -> None:
    copy = interrupt(state=tmp_path / "elsewhere")
    assert not states.exists()
    done = download(daemon.url(image.ticket), copy, settings=settings, state=tmp_path / "elsewhere")
    assert done.progress.resumed > 10 * MiB


def test_restart_receives_all(daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt) -> None:
    copy = interrupt()
    assert download(daemon.url(image.ticket), copy, settings=settings, restart=True).progress.resumed == 0
    assert copy.read_bytes() == image.content()


def test_another_ticket_goes_on(daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt) -> None:
    copy = interrupt()
    url = daemon.url(daemon.add_ticket(image.path, SIZE, ops=["read"]))
    assert download(url, copy, settings=settings).progress.resumed > 10 * MiB
    assert copy.read_bytes() == image.content()


def test_it_is_interrupted_again(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, states: Path
) -> None:
    interrupt(budget=6 * MiB)
    copy = interrupt(budget=6 * MiB)
    assert len(list(states.iterdir())) == 1
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed > 8 * MiB
    assert copy.read_bytes() == image.content()


@pytest.mark.parametrize("features", [(), ("checksum_blocks",)], ids=["blocks", "ranges"])
def test_what_has_changed_is_received_anew(
    daemon: Daemon,
    image: Image,
    settings: Settings,
    interrupt: Interrupt,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    features: tuple[str, ...],
) -> None:
    without(monkeypatch, *features)
    copy = interrupt()
    with image.path.open("r+b") as f:
        f.seek(5 * MiB)
        f.write(b"changed")
    done = download(daemon.url(image.ticket), copy, settings=settings)
    assert 6 * MiB < done.progress.resumed < BUDGET - 2 * MiB
    assert "has changed in" in caplog.text
    assert copy.read_bytes() == image.content()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_zero_now_is_zeroed(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, name: str
) -> None:
    """The part has data there, and nobody sends zeros."""
    copy = interrupt(f"copy.{name}")
    os.truncate(image.path, 5 * MiB)
    os.truncate(image.path, SIZE)
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed >= 4 * MiB
    assert content(copy, name) == image.content()


@pytest.mark.parametrize("name", FORMATS)
def test_what_no_flush_has_confirmed_is_zeroed(
    daemon: Daemon,
    image: Image,
    settings: Settings,
    interrupt: Interrupt,
    monkeypatch: pytest.MonkeyPatch,
    states: Path,
    name: str,
) -> None:
    copy = interrupt(f"copy.{name}")
    (state,) = states.iterdir()
    state.write_text(json.dumps({"done": [[0, 4 * MiB]]}))
    os.truncate(image.path, 5 * MiB)
    os.truncate(image.path, SIZE)
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed == 4 * MiB
    assert content(copy, name) == image.content()


def test_another_image_is_received_as_a_whole(
    daemon: Daemon, settings: Settings, new_image: MakeImage, interrupt: Interrupt
) -> None:
    copy = interrupt()
    other = new_image(pattern(SIZE, 7), ops=["read"])
    assert download(daemon.url(other.ticket), copy, settings=settings).progress.resumed == 0
    assert copy.read_bytes() == other.content()


@pytest.mark.parametrize("name", FORMATS)
def test_image_of_another_size_is_received_as_a_whole(
    daemon: Daemon, settings: Settings, new_image: MakeImage, interrupt: Interrupt, name: str
) -> None:
    copy = interrupt(f"copy.{name}")
    other = new_image(pattern(MiB), ops=["read"])
    assert download(daemon.url(other.ticket), copy, settings=settings).progress.resumed == 0
    assert content(copy, name) == other.content()


def test_part_that_was_damaged_is_mended(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt
) -> None:
    copy = interrupt()
    with copy.with_name("copy.raw.part").open("r+b") as f:
        f.seek(MiB)
        f.write(b"damage")
    done = download(daemon.url(image.ticket), copy, settings=settings)
    assert 0 < done.progress.resumed < BUDGET
    assert copy.read_bytes() == image.content()


def test_qcow2_that_cant_be_opened_is_made_anew(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt
) -> None:
    copy = interrupt("copy.qcow2")
    copy.with_name("copy.qcow2.part").write_bytes(bytes(MiB))
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed == 0
    assert content(copy, "qcow2") == image.content()


@pytest.mark.parametrize("left", ["a copy", "links", "others may read it"])
def test_part_that_others_may_have_open_is_not_continued(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, left: str
) -> None:
    copy = interrupt()
    part = copy.with_name("copy.raw.part")
    if left == "links":
        os.link(part, copy.with_name("another name"))
    elif left == "others may read it":
        copy.touch(0o600)
    else:
        data = part.read_bytes()
        part.rename(copy.with_name("another name"))
        part.write_bytes(data)
    with part.open("rb") as spy:
        assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed == 0
        assert not os.path.samestat(os.fstat(spy.fileno()), copy.stat())
    assert copy.read_bytes() == image.content()


def test_refusal_leaves_what_is_there(daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt) -> None:
    copy = interrupt()
    with pytest.raises(Refused):
        download(daemon.url("no-such-ticket"), copy, settings=settings)
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed > 10 * MiB


def test_two_downloads_dont_go_on_with_one_part(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt
) -> None:
    copy = interrupt()
    other = NewFile(copy, continues=True)
    with pytest.raises(LocalError, match="is being written by another download"):
        download(daemon.url(image.ticket), copy, settings=settings)
    other.keep()
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed > 10 * MiB


def test_download_that_was_verified_as_different_begins_anew(
    daemon: Daemon, image: Image, settings: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteImage, "checksum", lambda *_: {"checksum": "other"})
    with pytest.raises(ChecksumMismatch):
        download(daemon.url(image.ticket), directory / "copy", settings=settings, verify=True)
    assert not os.listdir(directory)


# Servers that compute less


def without(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    """Let the server not tell some features."""
    told = Abilities.from_json

    def fewer(answer: dict[str, object]) -> Abilities:
        kept = [name for name in answer["features"] if name not in features]  # type: ignore[attr-defined]
        return told({**answer, "features": kept})

    monkeypatch.setattr(Abilities, "from_json", fewer)


def test_sample_and_checksum_prove_it_where_ranges_have_none(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "checksum_blocks", "checksum_range")
    copy = interrupt()
    done = download(daemon.url(image.ticket), copy, settings=settings)
    assert (done.progress.resumed > 10 * MiB, done.checksum) == (True, None)
    assert copy.read_bytes() == image.content()


def test_change_that_the_sample_does_not_find_is_found_by_the_checksum(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "checksum_blocks", "checksum_range")
    copy = interrupt()
    monkeypatch.setattr("imageio_daemon.client.transfer.earlier.sample", lambda *_: new_ranges())
    with image.path.open("r+b") as f:
        f.seek(5 * MiB)
        f.write(b"changed")
    with pytest.raises(StateMismatch, match="the same command receives all"):
        download(daemon.url(image.ticket), copy, settings=settings)
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed == 0
    assert copy.read_bytes() == image.content()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_zero_now_is_zeroed_where_only_a_sample_was_compared(
    daemon: Daemon,
    image: Image,
    settings: Settings,
    interrupt: Interrupt,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The checksum would not find it: zeros of the image are not read here."""
    without(monkeypatch, "checksum_blocks", "checksum_range")
    monkeypatch.setattr("imageio_daemon.client.transfer.earlier.sample", lambda *_: new_ranges())
    copy = interrupt(f"copy.{name}")
    os.truncate(image.path, 5 * MiB)
    os.truncate(image.path, SIZE)
    done = download(daemon.url(image.ticket), copy, settings=settings, verify=True)
    assert done.progress.resumed == 5 * MiB
    assert done.checksum == checksum(image.path)
    assert content(copy, name) == image.content()


def test_nothing_is_continued_where_nothing_proves_it(
    daemon: Daemon, image: Image, settings: Settings, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = interrupt()
    without(monkeypatch, "checksum", "checksum_blocks", "checksum_range")
    other = interrupt("other.raw")
    assert os.listdir(copy.parent) == ["copy.raw.part"]
    assert not other.exists()
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed == 0


# What a killed download has left


def test_claims_are_only_what_was_flushed(interrupt: Interrupt, states: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(self: NewFile) -> bool:
        self.abandon()
        raise LocalError("no flush")

    monkeypatch.setattr(NewFile, "keep", failed)
    interrupt(checkpoint=1000)
    (state,) = states.iterdir()
    assert json.loads(state.read_text()) == {"done": []}


@pytest.mark.parametrize("name", FORMATS)
def test_full_file_system_leaves_what_there_was_room_for(
    daemon: Daemon, image: Image, settings: Settings, tmp_path: Path, name: str
) -> None:
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    told: list[Progress] = []
    with mounted("tmpfs", tmp_path, 16 * MiB) as directory:
        copy = directory / f"copy.{name}"
        with pytest.raises(LocalError, match="No space left on device"):
            download(daemon.url(image.ticket), copy, settings=settings, checkpoint=0, progress=told.append)
        assert (told[-1].durable or 0) > 8 * MiB
        subprocess.run(["mount", "-o", "remount,size=64M", directory], check=True)
        assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed > 8 * MiB
        assert content(copy, name) == image.content()


def test_units_of_huge_holes_are_cut(
    daemon: Daemon, settings: Settings, new_image: MakeImage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equality, "SPAN", 8 * MiB)
    image = new_image(size=64 * MiB, pieces={MiB: b"x", 40 * MiB + 5: pattern(10 * MiB)}, ops=["read"])
    copy = directory / "copy"
    budgets = iter([5 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy, pytest.raises(Temporary):
        download(f"https://localhost:{proxy.port}/images/{image.ticket}", copy, settings=settings, checkpoint=0)
    assert download(daemon.url(image.ticket), copy, settings=settings).progress.resumed > 40 * MiB - 64 * KiB
    assert copy.read_bytes() == image.content()
