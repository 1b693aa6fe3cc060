# SPDX-License-Identifier: Apache-2.0
"""Images that stay open: what is read, written and confirmed, by several threads, through losses and restarts."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from imageio_daemon import client
from imageio_daemon.client import ClientError, FlushFailed, Refused, ServerFailed, Settings, Temporary, WritesLost
from imageio_daemon.client.errors import Stopped, Usage
from imageio_daemon.client.handle import MAX_WRITE
from imageio_daemon.client.server.remote_image import RemoteImage
from tests.client.proxy import Proxy
from tests.examples.programs import ScriptedServer, answer
from tests.support.daemon import PROJECT, Daemon, MakeDaemon
from tests.support.images import Image, KiB, MakeImage, MiB, pattern
from tests.support.polling import eventually

SIZE = 16 * MiB
OK = answer("200 OK")
LENGTH = answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")


def abilities(instance: str | None = "a") -> bytes:
    """Make the answer to OPTIONS of a server that tells its process, or does not."""
    told = {"features": ["extents", "flush", "zero"]}
    return answer("200 OK", told | ({"instance": instance} if instance else {}))


def read(image: client.Image, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    image.read(offset, buffer)
    return bytes(buffer)


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    return new_image(pattern(SIZE), sparse=True)


@pytest.fixture
def image(daemon: Daemon, settings: Settings, target: Image) -> Iterator[client.Image]:
    with client.open(daemon.url(target.ticket), settings=settings) as image:
        yield image


def test_reads_any_range(image: client.Image) -> None:
    assert image.size == SIZE
    for offset, size in ((0, 1), (4095, 2), (SIZE - 1, 1), (MiB + 7, 3 * MiB), (SIZE, 0), (0, SIZE)):
        assert read(image, offset, size) == pattern(SIZE)[offset : offset + size]


def test_what_was_written_and_zeroed_is_read_and_on_storage(image: client.Image, target: Image) -> None:
    expected = bytearray(pattern(SIZE))
    image.write(5, memoryview(b"a" * 1000))
    expected[5:1005] = b"a" * 1000
    image.zero(MiB - 3, MiB)
    expected[MiB - 3 : 2 * MiB - 3] = bytes(MiB)
    image.write(0, b"")
    image.zero(SIZE, 0)
    image.flush()
    assert read(image, 0, SIZE) == expected
    assert target.content() == expected


def test_long_write_is_several_requests(image: client.Image, target: Image) -> None:
    data = pattern(MAX_WRITE + 5, 1)
    image.write(3, data)
    assert target.read(3, len(data)) == data


def test_extents_are_those_of_the_moment(daemon: Daemon, tls: Settings, new_image: MakeImage) -> None:
    target = new_image(size=SIZE, sparse=True)
    with client.open(daemon.url(target.ticket), settings=tls) as image:
        before = image.extents()
        image.write(MiB, pattern(64 * KiB))
        after = image.extents()
    assert not any(extent.start <= MiB < extent.end and not extent.zero for extent in before)
    assert any(extent.start <= MiB < extent.end and not extent.zero for extent in after)
    assert after[-1].end == SIZE


def test_threads_use_several_connections_at_a_time(image: client.Image, target: Image) -> None:
    assert image.connections == 4
    count, unit = 16, SIZE // 16
    expected = [pattern(unit, number) for number in range(count)]

    def work(number: int) -> None:
        choice = random.Random(number)
        start = number * unit
        for _ in range(10):
            offset = choice.randrange(unit - 4096)
            image.write(start + offset, expected[number][offset : offset + 4096])
            assert read(image, start + offset, 4096) == expected[number][offset : offset + 4096]
        image.write(start, expected[number])
        image.flush()

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))
    assert target.content() == b"".join(expected)


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (2**70, 0)])
def test_range_outside_of_the_image_is_refused(image: client.Image, offset: int, size: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: image.read(offset, bytearray(size)),
        lambda: image.write(offset, bytes(size)),
        lambda: image.zero(offset, size),
    ]
    for call in calls:
        with pytest.raises(Usage, match="are not in the image, which has 16777216"):
            call()
    with pytest.raises(Usage):
        image.zero(0, -1)


def test_memory_that_cannot_be_written_is_refused(image: client.Image) -> None:
    with pytest.raises(TypeError, match="can't be written to"):
        image.read(0, b"const")


def test_ticket_that_reads_does_not_write(daemon: Daemon, tls: Settings, new_image: MakeImage) -> None:
    target = new_image(pattern(MiB), ops=["read"])
    with client.open(daemon.url(target.ticket), settings=tls) as image:
        assert not image.writable
        assert read(image, 0, MiB) == pattern(MiB)
        with pytest.raises(Refused, match="403"):
            image.write(0, b"x")


def test_image_that_cannot_be_opened_is_told(daemon: Daemon, tls: Settings) -> None:
    with pytest.raises(Refused, match="403"):
        client.open(daemon.url("no-such-ticket"), settings=tls)


# The end


def test_connection_that_fails_ends_the_wait_for_the_others(
    daemon: Daemon, settings: Settings, target: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_begun, stopped = threading.Barrier(3), []

    def connect(image: RemoteImage) -> None:
        if not all_begun.wait(10):
            raise ServerFailed("no more connections")
        try:
            image.connection._stop.sleep(5)
        except Stopped:
            stopped.append(image)
            raise

    monkeypatch.setattr(RemoteImage, "connect", connect)
    with pytest.raises(ServerFailed, match="no more connections"):
        client.open(daemon.url(target.ticket), settings=replace(settings, connections=4))
    assert len(stopped) == 2


def test_closed_image_does_nothing_more(image: client.Image) -> None:
    image.close()
    image.close()
    calls: list[Callable[[], object]] = [
        lambda: read(image, 0, 1),
        lambda: image.zero(0, 1),
        image.flush,
        image.extents,
    ]
    for call in calls:
        with pytest.raises(Usage, match="was closed"):
            call()


def test_close_ends_calls_that_run_and_those_that_wait() -> None:
    with ScriptedServer(abilities(), LENGTH, None) as server:
        image = client.open(server.url, settings=Settings(connections=1))
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(read, image, 0, 10) for _ in range(2)]
            eventually(lambda: len(server.requests) == 3, "one of them runs")
            image.close()
            assert all(isinstance(call.exception(), ClientError) for call in calls)


# What a flush confirms


@contextmanager
def opened(server: Daemon, path: Path) -> Iterator[client.Image]:
    """Open a new image of zeros through a server."""
    path.write_bytes(bytes(SIZE))
    settings = Settings(cafile=str(server.cafile), local=False)
    with client.open(server.url(server.add_ticket(path, SIZE)), settings=settings) as image:
        yield image


def test_flush_of_what_a_restart_may_have_lost_fails_until_it_is_written_again(own: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "target"
    with opened(own, path) as image:
        image.write(0, b"a" * MiB)
        image.flush()
        image.write(MiB, b"b" * MiB)
        image.zero(4 * MiB, MiB)
        own.kill()
        own.restart()
        image.write(8 * MiB, b"c")  # the new process has this one
        for _ in range(2):
            with pytest.raises(WritesLost, match="2097152 bytes that no flush had confirmed") as lost:
                image.flush()
            assert lost.value.ranges == [(MiB, MiB), (4 * MiB, MiB)]
        image.write(MiB, b"b" * MiB)
        image.zero(4 * MiB, MiB // 2)
        with pytest.raises(WritesLost) as lost:
            image.flush()
        assert lost.value.ranges == [(4 * MiB + MiB // 2, MiB // 2)]
        image.zero(4 * MiB, MiB)
        image.flush()
    assert path.read_bytes()[: 3 * MiB] == b"a" * MiB + b"b" * MiB + bytes(MiB)


def test_flush_is_no_trouble_after_a_restart_that_lost_nothing(own: Daemon, tmp_path: Path) -> None:
    with opened(own, tmp_path / "target") as image:
        image.write(0, b"a")
        image.flush()
        own.stop()
        own.restart()
        image.flush()
        assert read(image, 0, 1) == b"a"


def test_restart_behind_a_proxy_that_keeps_the_connection_is_found() -> None:
    with ScriptedServer(abilities("a"), LENGTH, OK, OK, abilities("b")) as server:
        image = client.open(server.url, settings=Settings(connections=1))
        image.write(0, b"x")
        with pytest.raises(WritesLost):
            image.flush()
        image.close()


def test_lost_connection_may_be_a_restart_of_a_server_that_tells_no_process() -> None:
    with ScriptedServer(abilities(None), LENGTH, OK, b"", OK) as server:
        image = client.open(server.url, settings=Settings(connections=1))
        image.write(0, b"x")
        with pytest.raises(WritesLost):
            image.flush()
        image.close()


def test_end_of_a_connection_that_an_answer_announces_loses_nothing() -> None:
    last = answer("200 OK", "", "Connection: close")
    with ScriptedServer(abilities(None), LENGTH, last, OK) as server:
        image = client.open(server.url, settings=Settings(connections=1))
        image.write(0, b"x")
        image.flush()
        image.close()


def test_flush_that_was_not_answered_is_repeated_and_confirms() -> None:
    busy = answer("503 Busy", "", "Connection: close")
    with ScriptedServer(abilities(), LENGTH, OK, busy, abilities(), OK, abilities()) as server:
        image = client.open(server.url, settings=Settings(connections=1, retry_for=0))
        image.write(0, b"x")
        with pytest.raises(Temporary):
            image.flush()
        image.flush()
        image.close()


def test_flush_that_was_not_answered_forgets_nothing() -> None:
    busy = answer("503 Busy", "", "Connection: close")
    with ScriptedServer(abilities("a"), LENGTH, OK, busy, abilities("b"), OK, abilities("b")) as server:
        image = client.open(server.url, settings=Settings(connections=1, retry_for=0))
        image.write(7, b"xyz")
        with pytest.raises(Temporary):
            image.flush()
        with pytest.raises(WritesLost) as lost:
            image.flush()
        assert lost.value.ranges == [(7, 3)]
        image.close()


def test_flush_that_failed_fails_all_later_ones() -> None:
    """The storage tells a lost write once."""
    failed = answer("500 Failed", "Input/output error", "Connection: close", "X-Error-Code: storage_io")
    with ScriptedServer(abilities(), LENGTH, OK, failed) as server:
        image = client.open(server.url, settings=Settings(connections=1))
        image.write(0, b"x")
        for _ in range(2):
            with pytest.raises(FlushFailed, match=r"Input/output error.* may be lost") as raised:
                image.flush()
            assert raised.value.code == "storage_io"
        image.close()


def test_write_that_failed_is_not_waited_for() -> None:
    refused = answer("403 Forbidden", "no", "Connection: close")
    with ScriptedServer(abilities(), LENGTH, refused, OK, abilities()) as server:
        image = client.open(server.url, settings=Settings(connections=1))
        with pytest.raises(Refused):
            image.write(0, b"x")
        image.flush()
        image.close()


def test_broken_connections_are_made_anew(daemon: Daemon, new_image: MakeImage) -> None:
    target, choice = new_image(bytes(SIZE)), random.Random(1)
    with Proxy(daemon.port, lambda: choice.randrange(3 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"
        settings = Settings(cafile=str(daemon.cafile), local=False, retry_for=60)
        with client.open(url, settings=settings) as image:
            offsets = range(0, SIZE, MiB)
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda offset: image.write(offset, pattern(MiB, offset // MiB)), offsets))
                image.flush()
                got = list(threads.map(lambda offset: read(image, offset, MiB), offsets))
    assert got == [pattern(MiB, offset // MiB) for offset in offsets]
    assert target.content() == b"".join(got)
    assert proxy.broken > 3


def test_flushes_of_two_threads_both_fail(own: Daemon, tmp_path: Path) -> None:
    with opened(own, tmp_path / "target") as image:
        image.write(0, b"a")
        own.kill()
        own.restart()
        together = threading.Barrier(2)

        def flush() -> None:
            together.wait()
            image.flush()

        with ThreadPoolExecutor(2) as threads:
            errors = [threads.submit(flush).exception for _ in range(2)]
            assert all(isinstance(error(), WritesLost) for error in errors)


@pytest.mark.parametrize("local", [False, True], ids=["tls", "unix"])
def test_idle_connection_that_the_server_has_closed_is_no_failure(
    make_daemon: MakeDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture, local: bool
) -> None:
    daemon, path = make_daemon(daemon={"inactivity_timeout": 1}), tmp_path / "target"
    path.write_bytes(bytes(SIZE))
    ticket = daemon.add_ticket(path, SIZE, inactivity_timeout=1)
    settings = Settings(cafile=str(daemon.cafile), local=local, connections=1, retry_for=0)
    with client.open(daemon.url(ticket), settings=settings) as image:
        image.write(0, b"x")
        eventually(lambda: daemon.status(ticket)["connections"] == 0, "the daemon closes the connection")
        image.flush()
        assert read(image, 0, 2) == b"x\0"
    assert not caplog.records


def test_library_imports_no_server() -> None:
    program = (
        "import sys, imageio_daemon.client, imageio_daemon.client.cli; print({'aiohttp', 'uvloop'} & {*sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout == "set()\n"
