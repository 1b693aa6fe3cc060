# SPDX-License-Identifier: Apache-2.0
"""Transfers that are ended by a signal: what they leave, what they say, and how the next one goes on."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imageio_daemon.client import checksum
from tests.client.programs import TIMEOUT, ended, run, start
from tests.client.proxy import Proxy
from tests.examples.programs import ScriptedServer, answer, features
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.polling import eventually

#: What one thread of the command takes at a time.
PORTION = 32 * MiB
SIZE = 2 * PORTION
#: Killed uploads; the real campaign runs with IMAGEIO_TEST_LONG=1.
ROUNDS = 50 if os.environ.get("IMAGEIO_TEST_LONG") else 3
ENOUGH = 2**40
#: What each of the two connections of a download carries before it is held.
SOME = 24 * MiB
#: Of which so much is in the file before the signal comes: each connection writes 4 MiB at a time.
IN_FILE = 12 * MiB

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

#: Requests for data of always the same length.
STEADY = """\
import sys
from imageio_daemon.client.cli import main
from imageio_daemon.client.transfer import sender
sender.FIRST_REQUEST, sender.LONG = 8 * 1024**2, 1e9
"""
#: The command with them.
COMMAND = (sys.executable, "-c", STEADY + "sys.exit(main())")

#: Uploads SOURCE URL CAFILE in small units, and flushes after each.
UPLOAD = """\
from imageio_daemon.client import Settings, upload
from imageio_daemon.client.local.source import FileSource
FileSource.portion = 4 * 1024**2
where = {"cafile": sys.argv[3]} if sys.argv[3] else {"insecure": True}
settings = Settings(**where, local=False, connections=int(sys.argv[4]), retry_for=0)
upload(sys.argv[1], sys.argv[2], settings=settings, checkpoint=0)
"""
LIBRARY = (sys.executable, "-c", STEADY + UPLOAD)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An image without zeros, of two portions."""
    path = tmp_path / "source"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    return new_image(b"\xff" * SIZE)


@contextmanager
def holding(daemon: Daemon, image: Image, *budgets: int) -> Iterator[tuple[Proxy, str]]:
    """Run a proxy whose first connections stop after so many bytes, and tell the image's URL behind it."""
    left = iter(budgets)
    with Proxy(daemon.port, lambda: next(left, ENOUGH), hold=True) as proxy:
        yield proxy, f"https://localhost:{proxy.port}/images/{image.ticket}"


def wait_until_held(proxy: Proxy) -> None:
    assert proxy.held.acquire(timeout=TIMEOUT)


def claimed(states: Path) -> list[list[int]] | None:
    """Return the ranges in the state of the one upload; None if there is no state."""
    # NAME.upload.new is of a killed save().
    found = [json.loads(path.read_text())["done"] for path in states.glob("*.upload")]
    assert len(found) <= 1
    return found[0] if found else None


def upload(daemon: Daemon, source: Path, url: str) -> list[str | Path]:
    """Return the arguments of an upload by one connection through a proxy."""
    return ["upload", "--json", "--no-local", "--connections", "1", "--cafile", daemon.cafile, source, url]


# Uploads


@pytest.mark.parametrize("number", ENDING)
def test_ended_upload_continues_after_all_that_was_sent(
    daemon: Daemon, source: Path, target: Image, states: Path, number: signal.Signals
) -> None:
    with holding(daemon, target, PORTION + 9 * MiB) as (proxy, url):
        process = start(*upload(daemon, source, url))
        wait_until_held(proxy)
        process.send_signal(number)
        ended(process).failed_with(
            "interrupted; [0-9.]+ MiB of 64.0 MiB are on stable storage, the same command continues", 128 + number
        )
        again = run(*upload(daemon, source, url))
    assert again.status == 0, again
    assert PORTION < json.loads(again.out.splitlines()[-1])["resumed"] < PORTION + 9 * MiB
    assert target.content() == source.read_bytes()
    assert claimed(states) is None


def test_upload_ends_by_sigterm_where_sigint_is_ignored(daemon: Daemon, source: Path, target: Image) -> None:
    with holding(daemon, target, PORTION + 9 * MiB) as (proxy, url):
        process = start(*upload(daemon, source, url), ignored=True)
        wait_until_held(proxy)
        process.send_signal(signal.SIGTERM)
        ended(process).failed_with("the same command continues", 143)


def test_second_interrupt_does_not_wait_for_the_flush(
    daemon: Daemon, source: Path, target: Image, states: Path
) -> None:
    with holding(daemon, target, PORTION + 9 * MiB, 0) as (proxy, url):
        process = start(*upload(daemon, source, url))
        for _ in range(2):
            wait_until_held(proxy)
            process.send_signal(signal.SIGINT)
        ended(process).failed_with("interrupted; the target is incomplete \\([0-9.]+ MiB were done\\): start anew", 130)
    assert claimed(states) is None


def test_server_that_was_started_anew_confirms_nothing(source: Path, states: Path) -> None:
    ok, first, other = (answer("200 OK", {"features": ["flush", "zero"], "instance": name}) for name in ("", "a", "b"))
    size = answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")
    puts = [ok] * (PORTION // (8 * MiB))
    with ScriptedServer(first, size, ok, *puts, None, other, ok, other) as server:
        process = start("upload", "--connections", "1", source, server.url, program=COMMAND)
        eventually(lambda: len(server.requests) == 4 + len(puts), "the second portion begins", timeout=TIMEOUT)
        process.send_signal(signal.SIGINT)
        assert ended(process).status == 130
    assert [request.partition(" ")[0] for request in server.requests[-3:]] == ["OPTIONS", "PATCH", "OPTIONS"]
    assert claimed(states) == []


def test_interrupt_of_the_checksum_leaves_nothing_to_send(source: Path, states: Path) -> None:
    ok, size = answer("200 OK"), answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")
    before = [features("checksum", "flush", "zero"), size, ok, *[ok] * (SIZE // (4 * MiB)), ok]
    with ScriptedServer(*before, None) as server:
        process = start("upload", "--verify", "--connections", "1", source, server.url, program=COMMAND)
        eventually(lambda: len(server.requests) > len(before), "the checksum is asked for", timeout=TIMEOUT)
        process.send_signal(signal.SIGINT)
        ended(process).failed_with("64.0 MiB of 64.0 MiB are on stable storage, the same command continues", 130)
    assert claimed(states) == [[0, SIZE]]


def test_interrupt_ends_the_wait_for_a_silent_server(source: Path) -> None:
    size = answer("416 No", "", "Content-Range: bytes */99")
    with ScriptedServer(features("flush", "zero"), size, answer("200 OK"), hang=True) as server:
        process = start("upload", "--connections", "1", source, server.url)
        assert server.done.wait(TIMEOUT)
        process.send_signal(signal.SIGINT)
        ended(process).failed_with("interrupted", 130)


def test_interrupt_ends_the_wait_for_silent_input() -> None:
    with ScriptedServer(features("flush", "zero"), answer("200 OK"), hang=True) as server:
        process = start("upload", "--format", "raw", "--size", "1M", "-", server.url)
        assert server.done.wait(TIMEOUT)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
        assert ended(process).err == "imageio-client: interrupted\n"


# Uploads that are killed


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert ended(process).status == -signal.SIGKILL


def kill_upload(source: Path, *answers: bytes) -> None:
    """Kill an upload of units of 4 MiB that are flushed one by one, when a server has given its last answer."""
    size = answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")
    with ScriptedServer(features("flush", "zero"), size, answer("200 OK"), *answers, hang=True) as server:
        process = start(source, server.url, "", "1", program=LIBRARY)
        assert server.done.wait(TIMEOUT)
        killed(process)


def test_killed_upload_claims_nothing_before_the_answer_to_a_flush(source: Path, states: Path) -> None:
    kill_upload(source, answer("200 OK"))
    assert claimed(states) is None


def test_killed_upload_claims_what_was_flushed_and_no_more(source: Path, states: Path) -> None:
    ok = answer("200 OK")
    kill_upload(source, ok, ok, ok)  # PUT, flush, PUT: the next flush has no answer
    assert claimed(states) == [[0, 4 * MiB]]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_uploads_are_continued(daemon: Daemon, source: Path, target: Image, states: Path, seed: int) -> None:
    choice = random.Random(seed)
    budgets = [choice.randrange(5 * MiB, SIZE // 2) for _ in range(2)]
    with holding(daemon, target, *budgets) as (proxy, url):
        process = start(source, url, daemon.cafile, "2", program=LIBRARY)
        wait_until_held(proxy)
        killed(process)
        content, there = source.read_bytes(), target.content()
        for begin, end in claimed(states) or []:
            assert there[begin:end] == content[begin:end]
        assert ended(start(source, url, daemon.cafile, "2", program=LIBRARY)).status == 0
    assert target.content() == content
    assert not list(states.iterdir())


# Downloads


def download(daemon: Daemon, url: str, copy: Path) -> list[str | Path]:
    """Return the arguments of a download by two connections through a proxy: no more have less than SOME each."""
    return ["download", "--no-local", "--connections", "2", "--cafile", daemon.cafile, url, copy]


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("format_name", ["raw", "qcow2"])
def test_ended_download_leaves_the_older_copy_and_goes_on(
    daemon: Daemon,
    source: Path,
    new_image: MakeImage,
    tmp_path: Path,
    states: Path,
    number: signal.Signals,
    format_name: str,
) -> None:
    directory = tmp_path / "copies"
    directory.mkdir()
    copy = directory / "copy"
    copy.write_bytes(b"older")
    with holding(daemon, new_image(path=source), *[SOME] * 2) as (proxy, url):
        process = start(*download(daemon, url, copy), "--format", format_name)
        wait_until_held(proxy)
        part = directory / "copy.part"
        eventually(lambda: part.stat().st_blocks * 512 >= IN_FILE, "12 MiB are in the file", timeout=TIMEOUT)
        process.send_signal(number)
        ended(process).failed_with(
            "interrupted; [0-9.]+ MiB of 64.0 MiB are on stable storage, the same command continues", 128 + number
        )
        assert copy.read_bytes() == b"older"
        assert sorted(os.listdir(directory)) == ["copy", "copy.part"]
        again = run(*download(daemon, url, copy), "--format", format_name, "--json")
    assert again.status == 0, again
    assert json.loads(again.out.splitlines()[-1])["resumed"] >= 4 * MiB
    assert os.listdir(directory) == ["copy"]
    assert not list(states.iterdir())
    assert checksum(copy, format=format_name) == checksum(source, shared=True)


@pytest.mark.parametrize("format_name", ["raw", "qcow2", "vmdk"])
def test_ended_download_without_a_state_leaves_nothing(
    daemon: Daemon, source: Path, new_image: MakeImage, tmp_path: Path, format_name: str
) -> None:
    directory = tmp_path / "copies"
    directory.mkdir()
    copy = directory / "copy"
    no_state = ["--no-state"] if format_name != "vmdk" else []
    with holding(daemon, new_image(path=source), *[SOME] * 4) as (proxy, url):
        process = start(*download(daemon, url, copy), "--format", format_name, *no_state)
        wait_until_held(proxy)
        process.send_signal(signal.SIGINT)
        ended(process).failed_with(f"interrupted; {re.escape(str(copy))} was not made: start anew", 130)
    assert not os.listdir(directory)


def test_killed_download_is_no_hindrance(daemon: Daemon, source: Path, new_image: MakeImage, tmp_path: Path) -> None:
    directory = tmp_path / "copies"
    directory.mkdir()
    with holding(daemon, new_image(path=source), *[SOME] * 2) as (proxy, url):
        process = start(*download(daemon, url, directory / "copy"))
        for _ in range(2):
            wait_until_held(proxy)
        killed(process)
        assert os.listdir(directory) == ["copy.part"]
        assert run(*download(daemon, url, directory / "copy")).status == 0
    assert (directory / "copy").read_bytes() == source.read_bytes()
    assert os.listdir(directory) == ["copy"]


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_reader_of_the_output_that_pauses_is_not_waited_for(
    daemon: Daemon, source: Path, new_image: MakeImage, kind: str
) -> None:
    ours, theirs = os.pipe() if kind == "pipe" else [end.detach() for end in socket.socketpair()]
    url = daemon.url(new_image(path=source).ticket)
    process = start("download", "--no-local", "--cafile", daemon.cafile, url, "-", stdout=theirs)
    os.close(theirs)
    assert os.read(ours, 1), "it writes"
    process.send_signal(signal.SIGTERM)
    ended(process).failed_with("interrupted", 143)
    os.close(ours)
