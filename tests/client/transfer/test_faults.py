# SPDX-License-Identifier: Apache-2.0
"""Connections that break: requests are repeated, uploads are continued, and the bytes are always the same."""

import contextlib
import dataclasses
import fcntl
import logging
import os
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    FlushFailed,
    Progress,
    Refused,
    ServerFailed,
    Settings,
    StateMismatch,
    Temporary,
    Uploaded,
    download,
    extents,
    info,
    upload,
)
from imageio_daemon.client.local.source import FileSource
from imageio_daemon.client.server.abilities import Abilities
from imageio_daemon.client.server.address import ImageUrl
from imageio_daemon.client.transfer import earlier
from imageio_daemon.client.transfer.progress import Phase
from imageio_daemon.client.transfer.record import Record, States
from imageio_daemon.image.extents import Extent
from tests.client.proxy import Proxy
from tests.examples.programs import ScriptedServer, answer, features
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB, pattern

SIZE = 32 * MiB
#: Interrupted uploads; the real campaign runs with IMAGEIO_TEST_LONG=1.
ROUNDS = 100 if os.environ.get("IMAGEIO_TEST_LONG") else 4


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut images in many units, as large ones are."""
    monkeypatch.setattr(FileSource, "portion", 4 * MiB)


def random_image(path: Path, choice: random.Random) -> Path:
    """Make an image of data, zeros and holes at random places."""
    with path.open("wb") as f:
        f.truncate(SIZE + choice.randrange(4096))
        for number in range(8):
            f.seek(choice.randrange(SIZE - 3 * MiB))
            f.write(pattern(choice.randrange(3 * MiB), number))
            f.write(bytes(choice.randrange(MiB)))
    return path


def settings_for(daemon: Daemon, *, retry_for: float) -> Settings:
    return Settings(cafile=str(daemon.cafile), local=False, retry_for=retry_for, connections=2)


def proxied(proxy: Proxy, target: Image) -> str:
    return f"https://localhost:{proxy.port}/images/{target.ticket}"


def upload_by_many_tries(source: Path, url: str, settings: Settings) -> Uploaded:
    """Give the same command until it succeeds."""
    for _ in range(1000):
        with contextlib.suppress(Temporary):
            return upload(source, url, settings=settings, checkpoint=0, verify=True)
    raise AssertionError("it never succeeds")


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_interrupted_uploads_are_continued(
    daemon: Daemon, tmp_path: Path, new_image: MakeImage, states: Path, seed: int
) -> None:
    choice = random.Random(seed)
    source = random_image(tmp_path / "source", choice)
    target = new_image(b"\xff" * source.stat().st_size)
    with Proxy(daemon.port, lambda: choice.randrange(2000, 12 * MiB)) as proxy:
        done = upload_by_many_tries(source, proxied(proxy, target), settings_for(daemon, retry_for=0))
    assert target.content() == source.read_bytes()
    assert list(states.iterdir()) == []
    assert done.progress.done == source.stat().st_size


@pytest.mark.parametrize("seed", range(2))
def test_broken_connections_are_made_anew(daemon: Daemon, tmp_path: Path, new_image: MakeImage, seed: int) -> None:
    choice = random.Random(seed)
    source = random_image(tmp_path / "source", choice)
    target = new_image(b"\xff" * source.stat().st_size)
    with Proxy(daemon.port, lambda: choice.randrange(6 * MiB)) as proxy:
        settings = settings_for(daemon, retry_for=60)
        upload(source, proxied(proxy, target), settings=settings, verify=True)
        assert target.content() == source.read_bytes()
        download(proxied(proxy, target), tmp_path / "copy", settings=settings, verify=True)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert proxy.broken > 3


def test_download_goes_on_behind_what_came_before_a_connection_broke(
    daemon: Daemon, tmp_path: Path, new_image: MakeImage
) -> None:
    image = new_image(pattern(4 * MiB))
    with Proxy(daemon.port, lambda: MiB) as proxy:  # less than what is received at once
        settings = Settings(cafile=str(daemon.cafile), local=False, connections=1)
        download(proxied(proxy, image), tmp_path / "copy", settings=settings)
    assert (tmp_path / "copy").read_bytes() == pattern(4 * MiB)
    assert proxy.broken >= 4


# What is confirmed, and what is not


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A source without zeros, of three units."""
    source = tmp_path / "source"
    source.write_bytes(pattern(12 * MiB))
    return source


@pytest.fixture
def one(daemon: Daemon) -> Settings:
    """One connection that is not made anew."""
    return Settings(cafile=str(daemon.cafile), local=False, retry_for=0, connections=1)


@pytest.fixture
def interrupted(daemon: Daemon, full: Path, one: Settings, new_image: MakeImage) -> Iterator[tuple[str, Image]]:
    """The URL and the target of an upload that was broken after its first units, and now has a good connection."""
    target = new_image(size=12 * MiB)
    budgets = iter([9 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = proxied(proxy, target)
        with pytest.raises(Temporary):
            upload(full, url, settings=one, checkpoint=0)
        yield url, target


def test_only_the_rest_is_sent_again(interrupted: tuple[str, Image], full: Path, one: Settings) -> None:
    url, target = interrupted
    assert upload(full, url, settings=one).progress.resumed == 8 * MiB
    assert target.content() == full.read_bytes()


def test_another_ticket_of_the_target_goes_on(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, one: Settings, states: Path
) -> None:
    _, target = interrupted
    daemon.remove(target.ticket)
    url = daemon.url(daemon.add_ticket(target.path, 12 * MiB), host="127.0.0.1")
    assert upload(full, url, settings=one).progress.resumed == 8 * MiB
    assert target.content() == full.read_bytes()
    assert not list(states.iterdir())


def test_another_target_gets_all(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, one: Settings, new_image: MakeImage
) -> None:
    """Not even one that differs in the last byte only; and the state of the first one stays."""
    url, target = interrupted
    content = bytearray(target.content())
    content[8 * MiB - 1] ^= 1
    other = new_image(bytes(content))
    assert upload(full, daemon.url(other.ticket), settings=one).progress.data == 12 * MiB
    assert other.content() == full.read_bytes()
    assert upload(full, url, settings=one).progress.resumed == 8 * MiB


def test_state_in_use_is_that_of_another_upload(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, one: Settings, states: Path
) -> None:
    (state,) = states.iterdir()
    with state.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert upload(full, interrupted[0], settings=one).progress.resumed == 0


# Servers without checksums of ranges, such as ovirt-imageio


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What the daemon offers then."""
    features = {"checksum", "extents", "flush", "zero"}
    of_answer = Abilities.from_json

    def from_json(told: object) -> Abilities:
        answer = of_answer(told)
        return dataclasses.replace(answer, features=answer.features & features)

    monkeypatch.setattr(Abilities, "from_json", from_json)
    return features


def test_other_ticket_is_proven_by_the_checksum_of_all(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, one: Settings, offered: set[str]
) -> None:
    told: list[Progress] = []
    url = daemon.url(daemon.add_ticket(interrupted[1].path, 12 * MiB))
    done = upload(full, url, settings=one, progress=told.append)
    assert (done.progress.resumed, done.checksum) == (8 * MiB, None)
    assert told[-1].phase == Phase.VERIFYING
    assert interrupted[1].content() == full.read_bytes()


def test_other_target_that_no_sample_tells_apart_is_refused_at_the_end(
    daemon: Daemon,
    interrupted: tuple[str, Image],
    full: Path,
    one: Settings,
    new_image: MakeImage,
    offered: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(earlier, "SAMPLES", 1)
    monkeypatch.setattr("random.random", lambda: 0.0)
    content = bytearray(interrupted[1].content())
    content[5 * MiB + 77] ^= 1
    other = new_image(bytes(content))
    with pytest.raises(StateMismatch, match="had another target, or it was changed since: the same command sends all"):
        upload(full, daemon.url(other.ticket), settings=one)
    assert upload(full, daemon.url(other.ticket), settings=one).progress.resumed == 0
    assert other.content() == full.read_bytes()


def test_other_ticket_gets_all_without_checksums(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, one: Settings, offered: set[str]
) -> None:
    offered.remove("checksum")
    url = daemon.url(daemon.add_ticket(interrupted[1].path, 12 * MiB))
    assert upload(full, url, settings=one).progress.resumed == 0


def test_same_ticket_goes_on_without_checksums(
    interrupted: tuple[str, Image], full: Path, one: Settings, offered: set[str]
) -> None:
    offered.remove("checksum")
    assert upload(full, interrupted[0], settings=one).progress.resumed == 8 * MiB
    assert interrupted[1].content() == full.read_bytes()


# Sources and states that have changed


def test_changed_source_is_sent_whole(interrupted: tuple[str, Image], full: Path, one: Settings) -> None:
    url, target = interrupted
    full.write_bytes(pattern(12 * MiB, 1))
    assert upload(full, url, settings=one).progress.resumed == 0
    assert target.content() == full.read_bytes()


@pytest.mark.parametrize("position", [0, 5 * MiB + 77, 8 * MiB - 1])
def test_target_that_lost_what_was_sent_gets_all(
    interrupted: tuple[str, Image], full: Path, one: Settings, position: int
) -> None:
    url, target = interrupted
    with target.path.open("r+b") as f:
        f.seek(position)
        byte = f.read(1)
        f.seek(position)
        f.write(bytes([byte[0] ^ 1]))
    assert upload(full, url, settings=one).progress.resumed == 0
    assert target.content() == full.read_bytes()


def test_new_target_of_the_same_url_gets_all(
    daemon: Daemon, full: Path, one: Settings, new_image: MakeImage, tmp_path: Path
) -> None:
    target = new_image(size=12 * MiB, sparse=True)
    budgets = iter([9 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = proxied(proxy, target)
        with pytest.raises(Temporary):
            upload(full, url, settings=one, checkpoint=0)
        ticket = {
            name: daemon.status(target.ticket)[name] for name in ("uuid", "url", "size", "timeout", "ops", "sparse")
        }
        daemon.remove(target.ticket)
        os.truncate(target.path, 0)
        os.truncate(target.path, 12 * MiB)
        daemon.put_ticket(ticket)
        assert upload(full, url, settings=one).progress.skipped == 0
    assert target.content() == full.read_bytes()


def test_content_that_differs_starts_anew(interrupted: tuple[str, Image], full: Path, one: Settings) -> None:
    url, target = interrupted

    def change(progress: Progress) -> None:
        if progress.data:
            with target.path.open("r+b") as f:
                f.write(b"somebody else")

    with pytest.raises(ChecksumMismatch, match="send all with --restart"):
        upload(full, url, settings=one, verify=True, progress=change)
    upload(full, url, settings=one, verify=True)
    assert target.content() == full.read_bytes()


@pytest.mark.parametrize("content", ["", "[]", '{"done": [[1]]}', '{"done": [[2, 1]]}', '{"done": 3}', "[" * 10**6])
def test_file_that_is_no_state_is_not_used(
    interrupted: tuple[str, Image], full: Path, one: Settings, states: Path, content: str
) -> None:
    url, target = interrupted
    (state,) = states.iterdir()
    state.write_text(content)
    assert upload(full, url, settings=one).progress.resumed == 0
    assert target.content() == full.read_bytes()


def test_state_that_nobody_has_used_for_long_is_removed(
    daemon: Daemon, interrupted: tuple[str, Image], full: Path, one: Settings, states: Path
) -> None:
    (state,) = states.iterdir()
    old, used = (states / f"{digit * 32}-{digit * 32}.upload" for digit in "0f")
    for path in (old, used):
        path.touch()
        os.utime(path, (0, 0))
    full.write_bytes(pattern(12 * MiB, 1))
    with used.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        upload(full, interrupted[0], settings=one, checkpoint=0)
    assert sorted(states.iterdir()) == sorted([state, used])


def test_files_of_others_beside_the_states_stay(
    full: Path, one: Settings, daemon: Daemon, new_image: MakeImage, states: Path
) -> None:
    states.mkdir(parents=True)
    others = {states / "db.uploaded-2025.tar", states / "x.download", states / "old.upload.new"}
    for path in others:
        path.touch()
        os.utime(path, (0, 0))
    upload(full, daemon.url(new_image(size=12 * MiB).ticket), settings=one, checkpoint=0)
    assert set(states.iterdir()) == others


@pytest.mark.parametrize("home", ["", "state"])
def test_upload_without_a_place_for_its_state_is_made(
    daemon: Daemon,
    full: Path,
    one: Settings,
    new_image: MakeImage,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    home: str,
) -> None:
    target = new_image(size=12 * MiB)
    (tmp_path / "file").touch()
    upload(full, daemon.url(target.ticket), settings=one, checkpoint=0, state=tmp_path / "file" / home)
    assert target.content() == full.read_bytes()
    assert caplog.text.count("--state-dir") == 1


def test_state_for_which_there_is_no_room_is_told_and_unlocked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def states() -> States:
        return States(tmp_path, {}, ImageUrl.parse("https://localhost/images/ticket"), MiB)

    record = Record(states=states())
    record.save([(0, 1)])
    (saved,) = tmp_path.iterdir()
    saved.with_name(f"{saved.name}.new").symlink_to("/dev/full")
    record.save([(0, 2)])
    assert f"can't keep what is done in {tmp_path}: No space left on device" in caplog.text
    assert [claim.done for claim in states().claims()] == [[(0, 1)]]


def test_failed_flush_starts_anew(full: Path, states: Path) -> None:
    ok, total = answer("200 OK"), answer("206 Partial Content", "x", "Content-Range: bytes 0-0/12582912")
    script = [features("flush", "zero"), total, ok, ok, ok, ok, answer("500 Internal Server Error", "failed")]
    settings = Settings(connections=1)
    with (
        ScriptedServer(*script) as server,
        pytest.raises(FlushFailed, match="may be lost: upload anew, with a new ticket"),
    ):
        upload(full, server.url, settings=settings, checkpoint=0)
    assert not list(states.glob("*"))


def test_server_that_closes_after_each_answer_is_connected_again() -> None:
    last = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/7")
    with ScriptedServer(answer("200 OK", {"features": []}, "Connection: close"), last) as server:
        assert info(server.url, settings=Settings(retry_for=0)).size == 7


def test_4xx_is_not_repeated(full: Path) -> None:
    with ScriptedServer(answer("403 Forbidden", "no")) as server, pytest.raises(Refused, match="403"):
        upload(full, server.url, settings=Settings())
    assert len(server.requests) == 1


# Servers that may have lost what was written before a connection broke

OK, LOST = answer("200 OK"), b""


def abilities(instance: str | None) -> bytes:
    """Make the answer to OPTIONS of a process with this name."""
    return answer("200 OK", {"features": ["flush", "zero"]} | ({"instance": instance} if instance else {}))


def requests_of_upload(source: Path, *answers: bytes) -> str:
    """Upload to a server that answers so, and return the first letters of the requests after the first two."""
    with ScriptedServer(*answers) as server:
        upload(source, server.url, settings=Settings(connections=1), state=False)
    return " ".join(request.partition("/")[0].strip() for request in server.requests[2:])


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A source that takes one request."""
    source = tmp_path / "source"
    source.write_bytes(pattern(MiB))
    return source


def test_what_an_unknown_server_may_have_lost_is_sent_again(short: Path) -> None:
    script = [abilities(None), OK, LOST, OK, OK, OK, OK]
    assert requests_of_upload(short, *script) == "PUT PUT PATCH PUT PATCH"


def test_server_that_was_started_anew_gets_all_again(short: Path) -> None:
    a, b = abilities("a"), abilities("b")
    script = [a, OK, LOST, b, OK, OK, b, OK, OK, b]
    assert requests_of_upload(short, *script) == "PUT OPTIONS PUT PATCH OPTIONS PUT PATCH OPTIONS"


def test_server_that_is_still_the_same_has_lost_nothing(short: Path) -> None:
    a = abilities("a")
    script = [a, OK, LOST, a, OK, OK, a]
    assert requests_of_upload(short, *script) == "PUT OPTIONS PUT PATCH OPTIONS"


def test_server_that_is_lost_at_the_flush_gets_all_again(short: Path) -> None:
    a, b = abilities("a"), abilities("b")
    script = [a, OK, OK, LOST, b, OK, b, OK, OK, b]
    assert requests_of_upload(short, *script) == "PUT PATCH OPTIONS PATCH OPTIONS PUT PATCH OPTIONS"


def test_server_that_was_started_anew_behind_a_proxy_gets_all_again(short: Path) -> None:
    """The proxy connects to the next process, and the client's connection is never lost."""
    a, b = abilities("a"), abilities("b")
    script = [a, OK, OK, OK, b, OK, OK, b]
    assert requests_of_upload(short, *script) == "PUT PATCH OPTIONS PUT PATCH OPTIONS"


def test_stream_that_may_be_lost_is_told(short: Path) -> None:
    script = [abilities(None), OK, LOST, OK, OK]
    settings = Settings(connections=1)
    with (
        ScriptedServer(*script) as server,
        short.open("rb") as stream,
        pytest.raises(ServerFailed, match="upload anew"),
    ):
        upload(stream, server.url, settings=settings, size=MiB)


def test_connections_that_are_always_lost_end_the_upload(short: Path) -> None:
    with pytest.raises(Temporary, match="too often to know what is on stable storage"):
        requests_of_upload(short, abilities(None), OK, *[LOST, OK, OK] * 4)


# Answers that can't be


@pytest.mark.parametrize(
    "told",
    [
        '{"features": [], "max_readers": Infinity}',
        '{"features": [], "max_writers": 1e30}',
        '{"features": [], "max_writers": 1000000000000000000000000000000}',
        '{"features": [], "max_writers": %s}' % ("9" * 5000),
        '{"features": 3}',
        '{"features": "zero"}',
    ],
)
def test_abilities_of_another_form_are_told(told: str) -> None:
    with (
        ScriptedServer(answer("200 OK", told)) as server,
        pytest.raises(ServerFailed, match=r"does not speak|not JSON"),
    ):
        info(server.url, settings=Settings(retry_for=0))


@pytest.mark.parametrize("size", ["9" * 5000, str(2**63), "x", "-1", "²"])
def test_size_of_another_form_is_told(size: str) -> None:
    script = [features(), answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{size}")]
    with ScriptedServer(*script) as server, pytest.raises(ServerFailed, match="did not tell the size"):
        info(server.url, settings=Settings(retry_for=0))


@pytest.mark.parametrize("length", ["99", "Infinity", "1e30", "9" * 5000, "-1", "0", '"100"'])
def test_extents_of_another_size_are_told(length: str) -> None:
    size = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/100")
    told = answer("200 OK", f'[{{"start": 0, "length": {length}, "zero": true}}]')
    with ScriptedServer(abilities(None), size, told) as server, pytest.raises(ServerFailed, match="of 100 bytes"):
        extents(server.url, settings=Settings(retry_for=0))


def test_answer_that_is_cut_off_is_asked_for_again() -> None:
    size = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/100", "Connection: close")
    short = answer("200 OK", '[{"start": 0, "length": 100, "zero": true}]', "Connection: close")[:-20]
    whole = answer("200 OK", '[{"start": 0, "length": 100, "zero": true}]')
    cut = answer("200 OK", {"features": ["extents"]}, "Connection: close")[:-1]
    script = [cut, abilities(None), size, short, size, whole]
    with ScriptedServer(*script) as server:
        assert list(extents(server.url, settings=Settings())) == [Extent(0, 100, zero=True)]


# Connections that can't be made


def test_host_that_does_not_exist_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []

    def getaddrinfo(host: str, *_: object) -> None:
        looked_up.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(ServerFailed, match="can't connect to host:1: Name or service not known"):
        info("https://host:1/images/x")
    assert looked_up == ["host"]


def test_long_absence_of_the_server_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("imageio_daemon.client.server.patience.FIRST_DELAY", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/images/x"
    with pytest.raises(Temporary, match="Connection refused"):
        info(url, settings=Settings(retry_for=0.1))
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    expected = r"can't connect to 127.0.0.1:\d+: Connection refused: nothing listens there; again in [\d.]+ s"
    assert re.fullmatch(expected, told.getMessage())
