# SPDX-License-Identifier: Apache-2.0
"""What is durable is told after a crash of the daemon, and nothing else; and state directories that cannot be used."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest

from tests.support import shared
from tests.support.daemon import STATE, Certificates, Daemon, MakeDaemon, ticket
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.polling import eventually
from tests.support.realstorage import filled, missing, mounted
from tests.support.refusing import without_no_aio

from .test_durable import DATA, durable, flush, write, zero

OTHER = pattern(MiB, seed=4)


@pytest.fixture
def daemon(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon of the test's own, which it may kill."""
    with shared.start(certificates) as made:
        yield made


@pytest.fixture
def empty(new_image: MakeImage) -> Image:
    """A writable image of 1 MiB of which nothing is durable."""
    return new_image(size=MiB)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(MiB))
    return path


@contextmanager
def client_of(daemon: Daemon) -> Iterator[Connection]:
    with daemon.connect("unix") as client:
        yield client


def restart(daemon: Daemon, image: Image) -> None:
    """Let the daemon die, and start it again when nothing of it uses the image."""
    daemon.kill()
    if image.place.kind == "managed-qcow2":
        eventually(lambda: not image.place.is_open(daemon), "qemu-nbd has ended")
    daemon.restart()


# Crashes


@pytest.mark.every_kind
def test_what_was_flushed_is_durable_after_a_crash(daemon: Daemon, empty: Image) -> None:
    with client_of(daemon) as client:
        write(client, empty, 0, 65536)
        zero(client, empty, 131072, 196608)
        flush(client, empty)
        write(client, empty, 327680, 393216, flush=True)
        write(client, empty, 524288, 589824)
    restart(daemon, empty)
    with client_of(daemon) as client:
        assert durable(client, empty) == [(0, 65536), (131072, 196608), (327680, 393216)]
        assert client.get(empty.url).body[:65536] == DATA[:65536]


@needs(Trait.HERE)
@pytest.mark.every_kind
def test_what_was_written_anew_and_not_flushed_is_not_durable_after_a_crash(daemon: Daemon, empty: Image) -> None:
    with client_of(daemon) as client:
        write(client, empty, 0, MiB, flush=True)
        write(client, empty, 65536, 131072)
        zero(client, empty, 262144, 327680)
    restart(daemon, empty)
    with client_of(daemon) as client:
        assert durable(client, empty) == [(0, 65536), (131072, 262144), (327680, MiB)]
        flush(client, empty)
        assert durable(client, empty) == [(0, 65536), (131072, 262144), (327680, MiB)]
        write(client, empty, 65536, 131072, flush=True)
        assert durable(client, empty) == [(0, 262144), (327680, MiB)]


def test_ticket_that_is_put_again_after_a_crash_finds_its_record(make_daemon: MakeDaemon, path: Path) -> None:
    daemon = make_daemon(daemon={"state_dir": STATE, "keep_tickets": "false"})
    fields = ticket(path, MiB)
    image = f"/images/{daemon.put_ticket(fields)}"
    with client_of(daemon) as client:
        assert client.put_at(image, 0, DATA[:4096]).status == 200
    daemon.kill()
    daemon.restart()
    with client_of(daemon) as client:
        assert client.get(f"{image}/extents?context=durable").status == 403
    daemon.put_ticket(fields)
    with client_of(daemon) as client:
        assert ranges(client, image) == [(0, 4096)]


def ranges(client: Connection, url: str) -> list[tuple[int, int]]:
    answer = client.get(f"{url}/extents?context=durable")
    assert answer.status == 200, answer.text
    return [(told["start"], told["start"] + told["length"]) for told in answer.json() if told["durable"]]


@needs(Trait.OWN, Trait.RAW_FILE)
def test_another_image_with_the_same_path_tells_nothing(daemon: Daemon, empty: Image) -> None:
    with client_of(daemon) as client:
        write(client, empty, 0, 65536, flush=True)
    daemon.kill()
    empty.path.unlink()
    empty.path.write_bytes(bytes(MiB))
    daemon.restart()
    with client_of(daemon) as client:
        assert durable(client, empty) == []


@needs(Trait.OWN, Trait.RAW_FILE)
def test_another_ticket_for_the_image_tells_nothing(daemon: Daemon, new_image: MakeImage, empty: Image) -> None:
    with client_of(daemon) as client:
        write(client, empty, 0, 65536, flush=True)
    daemon.kill()
    daemon.restart()
    other = new_image(of=empty)
    with client_of(daemon) as client:
        assert durable(client, other) == []
        write(client, other, 0, 4096, flush=True)
        daemon.remove(other.ticket)
        assert durable(client, empty) == []


# State directories that cannot be used, or what is in them


def complaints(daemon: Daemon) -> list[str]:
    """Return the warnings and errors in the log, but for those that tell which feature is not in force meanwhile."""
    text = without_no_aio(daemon.log.text())
    lines = [line for line in text.splitlines() if " WARNING " in line or " ERROR " in line]
    return [line for line in lines if NOT_IN_FORCE not in line]


def not_in_force(daemon: Daemon) -> list[str]:
    """Return which features are told to be not in force, each as often as it is told."""
    return [line.split()[0] for line in daemon.log.text().split(NOT_IN_FORCE)[1:]]


NOT_IN_FORCE = ": not in force feature="


def check_serves_with_an_empty_record(daemon: Daemon, path: Path, ticket_id: str | None = None) -> str:
    ticket_id = ticket_id or daemon.add_ticket(path, MiB)
    url = f"/images/{ticket_id}"
    with client_of(daemon) as client:
        assert "durable" in client.request("OPTIONS", url).json()["features"]
        assert ranges(client, url) == []
        assert client.request("PUT", url, None, OTHER).status == 200
        assert client.patch(url, {"op": "flush"}).status == 200
    assert path.read_bytes() == OTHER
    return ticket_id


def damage(journal: Path, how: str) -> None:
    text = journal.read_bytes()
    lines = text.splitlines(keepends=True)
    if how == "empty":
        text = b""
    elif how == "short":
        text = b"".join(lines[:-1])
    elif how == "cut":
        text = text[:-5]
    elif how == "changed":
        text = text[:-15] + bytes([text[-15] ^ 1]) + text[-14:]
    elif how == "newer":
        first = lines[0].rpartition(b" ")[0].replace(b"imageio-durable 1", b"imageio-durable 2")
        text = b"%b %08x\n" % (first, crc32(first)) + b"".join(lines[1:])
    else:
        text *= 20_000
    journal.write_bytes(text)


@pytest.mark.parametrize("how", ["empty", "short", "cut", "changed", "newer", "long"])
def test_damaged_journal_is_told_once_and_tells_nothing(daemon: Daemon, path: Path, how: str) -> None:
    ticket_id = daemon.add_ticket(path, MiB)
    with client_of(daemon) as client:
        assert client.put_at(f"/images/{ticket_id}", 0, DATA[:65536]).status == 200
        assert client.put_at(f"/images/{ticket_id}?flush=n", 0, OTHER[:4096]).status == 200  # its line is counted
    daemon.kill()
    (journal,) = (daemon.directory / "state" / "durable").iterdir()
    damage(journal, how)
    daemon.restart()
    check_serves_with_an_empty_record(daemon, path, ticket_id)
    assert len(complaints(daemon)) == 1
    assert "the record of durable ranges is dropped" in complaints(daemon)[0]
    with client_of(daemon) as client:
        assert ranges(client, f"/images/{ticket_id}") == [(0, MiB)]


def of_another_user(state: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root to give files away")
    os.chown(state, 12345, 12345)


def newer(state: Path) -> None:
    (state / "version").write_text("999\n")


def open_to_others(state: Path) -> None:
    state.chmod(0o755)


@pytest.mark.parametrize("spoil", [of_another_user, newer, open_to_others])
def test_state_directory_that_cannot_be_used_is_told_once(
    make_daemon: MakeDaemon, tmp_path: Path, path: Path, spoil: Callable[[Path], None]
) -> None:
    state = tmp_path / "state"
    state.mkdir(0o700)
    spoil(state)
    daemon = make_daemon(daemon={"state_dir": state})
    check_serves_with_an_empty_record(daemon, path)
    assert len(complaints(daemon)) == 1
    assert "cannot be used" in complaints(daemon)[0]
    assert not_in_force(daemon) == ["state_dir"]


def test_directory_in_the_place_of_a_journal_is_refused_by_its_name_at_the_start(daemon: Daemon, path: Path) -> None:
    ticket_id = daemon.add_ticket(path, MiB)
    with client_of(daemon) as client:
        assert client.put_at(f"/images/{ticket_id}", 0, DATA[:65536]).status == 200
    daemon.stop()
    (journal,) = (daemon.directory / "state" / "durable").iterdir()
    journal.unlink()
    journal.mkdir()
    daemon.restart()
    check_serves_with_an_empty_record(daemon, path, ticket_id)
    assert f"is not kept: durable/{journal.name}: expected a file, it is a directory" in complaints(daemon)[0]


def test_directory_in_the_place_of_a_kept_ticket_is_refused_by_its_name_at_the_start(
    daemon: Daemon, path: Path
) -> None:
    daemon.add_ticket(path, MiB)
    daemon.stop()
    (kept,) = (daemon.directory / "state" / "tickets").iterdir()
    kept.unlink()
    kept.mkdir()
    daemon.restart()
    daemon.remove(daemon.add_ticket(path, MiB))
    assert f"tickets/{kept.name}: expected a file, it is a directory" in complaints(daemon)[0]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for the state."""
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, MiB) as directory:
        directory.chmod(0o700)
        yield directory


def test_state_directory_that_is_full_at_the_start_is_told_once(
    make_daemon: MakeDaemon, small: Path, path: Path
) -> None:
    with filled(small):
        daemon = make_daemon(daemon={"state_dir": small})
        check_serves_with_an_empty_record(daemon, path)
        assert len(complaints(daemon)) == 1
        assert not_in_force(daemon) == ["state_dir"]
        daemon.stop()


def test_state_directory_that_becomes_full_costs_the_record_only(
    make_daemon: MakeDaemon, small: Path, path: Path
) -> None:
    os.truncate(path, 8 * MiB)
    daemon = make_daemon(daemon={"state_dir": small, "keep_tickets": "false"})
    fields = ticket(path, 8 * MiB)
    url = f"/images/{daemon.put_ticket(fields)}"
    with client_of(daemon) as client:
        assert client.put_at(url, 0, DATA[:65536]).status == 200
        (journal,) = (small / "durable").iterdir()
        with filled(small):
            for number in range(250):  # lines: more than the page that the journal has already
                assert client.put_at(url, 131072 + 8192 * number, DATA[:4096]).status == 200
            assert client.put_at(f"{url}?flush=n", 0, OTHER[:65536]).status == 200
            assert not any(start < 65536 for start, _ in ranges(client, url))
    eventually(lambda: bool(complaints(daemon)), "the failure is told")
    assert len(complaints(daemon)) == 1
    assert "the record of durable ranges is not kept" in complaints(daemon)[0]
    daemon.kill()
    assert not journal.exists() or b"- 0 65536" in journal.read_bytes()
    daemon.restart()
    daemon.put_ticket(fields)
    with client_of(daemon) as client:
        assert not any(start < 65536 for start, _ in ranges(client, url))


def test_two_daemons_do_not_keep_one_record(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    make_daemon(daemon={"state_dir": tmp_path / "state"})
    with pytest.raises(AssertionError, match="another daemon uses the directory"):
        make_daemon(daemon={"state_dir": tmp_path / "state"})
