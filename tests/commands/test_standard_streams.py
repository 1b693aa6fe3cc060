# SPDX-License-Identifier: Apache-2.0
"""What becomes of standard input, output and error changes nothing of what a command does; its status tells that."""

import contextlib
import fcntl
import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import MODULES, Result
from tests.support.daemon import Certificates, Daemon
from tests.support.images import MiB, pattern
from tests.support.polling import eventually

TIMEOUT = 60.0
DATA = pattern(MiB)
#: What the shell does to the streams of a command.
CLOSED, FULL, GONE = ">&-", ">/dev/full", "| true"
SILENT = ("2>&-", "2>/dev/full", "2>&1 >/dev/null | true", "<&- >&- 2>&-", ">/dev/full 2>/dev/full")
LOST = {CLOSED: "Bad file descriptor", FULL: "No space left on device"}


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.write_bytes(bytes(MiB))
    return path


def run(streams: str, program: str, *arguments: str | Path, stdin: Path | None = None) -> Result:
    """Run a command by a shell that does this to its streams."""
    command = shlex.join([sys.executable, "-m", MODULES[program], *map(str, arguments)])
    with contextlib.ExitStack() as stack:
        done = subprocess.run(
            ["bash", "-c", f"{command} {streams}; exit ${{PIPESTATUS[0]}}"],
            check=False,
            stdin=stack.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
        )
    return Result(program, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode())


def upload(server: Daemon, source: Path, target: Path, streams: str, *options: str) -> Result:
    url = server.url(server.add_ticket(target, MiB))
    return run(streams, "imageio-client", "upload", "--no-state", "--cafile", server.cafile, *options, source, url)


def question(server: Daemon, name: str, source: Path) -> tuple[str | Path, ...]:
    return name, "--cafile", server.cafile, server.url(server.add_ticket(source, MiB, ops=["read"]))


# Transfers


@pytest.mark.parametrize("streams", SILENT)
@pytest.mark.parametrize("option", ["-v", "--json"])
def test_upload_needs_nobody_who_reads(server: Daemon, source: Path, target: Path, streams: str, option: str) -> None:
    result = upload(server, source, target, streams, option)
    assert (result.status, result.err) == (0, "")
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("streams", LOST)
def test_json_that_is_lost_is_told(server: Daemon, source: Path, target: Path, streams: str) -> None:
    result = upload(server, source, target, streams, "--json")
    result.failed_with(f"can't write standard output: {LOST[streams]}", 0)
    assert target.read_bytes() == DATA


def test_reader_that_has_gone_is_no_news(server: Daemon, source: Path, target: Path) -> None:
    result = upload(server, source, target, GONE, "--json")
    assert (result.status, result.err) == (0, "")
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("streams", SILENT)
def test_failed_upload_has_its_status(server: Daemon, source: Path, streams: str) -> None:
    url = server.url("no-such-ticket")
    result = run(streams, "imageio-client", "upload", "--json", "--cafile", server.cafile, source, url)
    assert (result.status, result.err) == (3, "")


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_image_on_standard_output_has_nothing_else(server: Daemon, source: Path, tmp_path: Path, streams: str) -> None:
    copy = tmp_path / "copy"
    result = run(f"{streams} > {copy}", "imageio-client", *question(server, "download", source), "-")
    assert result.status == 0
    assert copy.read_bytes() == DATA


@pytest.mark.parametrize("streams", [CLOSED, FULL, GONE])
def test_image_that_standard_output_does_not_take_is_an_error(server: Daemon, source: Path, streams: str) -> None:
    result = run(streams, "imageio-client", *question(server, "download", source), "-")
    result.failed_with(f"can't write the output: {LOST.get(streams, 'Broken pipe')}", 5)


def test_image_goes_through_a_pipe_that_does_not_block(server: Daemon, source: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) | os.O_NONBLOCK)
    command = [sys.executable, "-m", MODULES["imageio-client"], *map(str, question(server, "download", source)), "-"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        with open(reader, "rb") as pipe:
            assert pipe.read() == DATA
        assert process.wait(TIMEOUT) == 0


@pytest.mark.parametrize("streams", ["<&-", "<&- >&- 2>&-"])
def test_input_that_is_closed_is_an_error(server: Daemon, target: Path, streams: str) -> None:
    url = server.url(server.add_ticket(target, MiB))
    result = run(streams, "imageio-client", "upload", "--cafile", server.cafile, "--size", "1M", "-", url)
    assert result.status == 5
    assert result.err in ("", "imageio-client: can't read the input: Bad file descriptor\n")


def test_transfer_does_not_wait_for_its_readers(server: Daemon, source: Path, target: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(64))
    os.set_blocking(writer, True)
    url = server.url(server.add_ticket(target, MiB, rate=MiB // 2))  # two seconds: a line of JSON each
    command = [
        sys.executable,
        "-m",
        MODULES["imageio-client"],
        "upload",
        "--json",
        "-v",
        "--cafile",
        str(server.cafile),
    ]
    with (
        subprocess.Popen([*command, str(source), url], stdout=writer, stderr=writer) as process,
        open(reader, "rb") as pipe,
    ):
        os.close(writer)
        eventually(lambda: target.read_bytes() == DATA, "all is sent", timeout=TIMEOUT)
        lines = pipe.read().replace(bytes(64), b"").splitlines()
        assert process.wait(TIMEOUT) == 0
    assert json.loads(lines[-1])["event"] == "result"


def test_terminal_that_has_gone_is_no_error(server: Daemon, source: Path, target: Path) -> None:
    master, slave = pty.openpty()
    url = server.url(server.add_ticket(target, MiB))
    command = [sys.executable, "-m", MODULES["imageio-client"], "upload", "--cafile", str(server.cafile)]
    with subprocess.Popen([*command, str(source), url], stdin=subprocess.DEVNULL, stderr=slave) as process:
        os.close(slave)
        os.close(master)
        assert process.wait(TIMEOUT) == 0
    assert target.read_bytes() == DATA


# Commands whose output is all that they do

QUESTIONS = ["info", "extents", "checksum"]


@pytest.mark.parametrize("streams", LOST)
@pytest.mark.parametrize("option", ["--quiet", "--json"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_answer_that_is_lost_is_an_error(server: Daemon, source: Path, name: str, option: str, streams: str) -> None:
    result = run(streams, "imageio-client", *question(server, name, source), option)
    result.failed_with(f"can't write standard output: {LOST[streams]}", 5)


@pytest.mark.parametrize("name", QUESTIONS)
def test_answer_whose_reader_has_gone_is_quiet(server: Daemon, source: Path, name: str) -> None:
    result = run(GONE, "imageio-client", *question(server, name, source))
    assert (result.status, result.err) == (5, "")


@pytest.mark.parametrize("streams", SILENT)
@pytest.mark.parametrize("program", MODULES)
def test_wrong_arguments_have_their_status(program: str, streams: str) -> None:
    assert run(streams, program, "--no-such-option").status == 2


@pytest.mark.parametrize(
    ("program", "arguments", "status"),
    [
        ("imageio-client", ("--help",), 5),
        ("imageioctl", ("--version",), 1),
        ("imageio-daemon", ("--help",), 1),
        ("imageio-daemon", ("-c", "{conf}", "--show-config"), 1),
        ("imageioctl", ("ticket", "list", "--socket", "{socket}"), 1),
        ("imageioctl", ("check", "--json", "--socket", "{socket}", "--conf-dir", "{conf}"), 1),
        ("imageioctl", ("ticket", "add", "--socket", "{socket}", "{source}"), 1),
    ],
)
@pytest.mark.parametrize("streams", [CLOSED, FULL, GONE])
def test_text_that_is_lost_is_an_error(
    server: Daemon, source: Path, program: str, arguments: tuple[str, ...], status: int, streams: str
) -> None:
    places = {"conf": server.directory, "socket": server.control_socket, "source": source}
    result = run(streams, program, *(argument.format(**places) for argument in arguments))
    assert result.status == status
    said = f"{program}: can't write standard output: {LOST[streams]}\n" if streams in LOST else ""
    assert result.err == said


def test_events_end_when_their_reader_has_gone(server: Daemon, source: Path) -> None:
    command = [sys.executable, "-m", MODULES["imageioctl"], "events", "--follow", "--socket", server.control_socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        server.add_ticket(source, MiB)
        assert process.stdout.readline()
        process.stdout.close()
        eventually(lambda: server.add_ticket(source, MiB) and process.poll() is not None, "it ends", timeout=TIMEOUT)
        assert process.returncode == 1


@pytest.mark.parametrize("streams", LOST)
def test_tickets_are_removed_whatever_becomes_of_the_list(server: Daemon, source: Path, streams: str) -> None:
    transfers = [server.status(server.add_ticket(source, MiB))["transfer"] for _ in range(3)]
    result = run(streams, "imageioctl", "ticket", "remove", "--json", "--socket", server.control_socket, *transfers)
    result.failed_with(f"can't write standard output: {LOST[streams]}", 0)
    left = run("", "imageioctl", "ticket", "list", "--socket", server.control_socket).out
    assert not any(transfer in left for transfer in transfers)


def test_ids_from_an_input_that_is_closed_are_an_error(server: Daemon) -> None:
    result = run("<&-", "imageioctl", "ticket", "remove", "--socket", server.control_socket, "-")
    result.failed_with("can't read standard input: Bad file descriptor", 1)


# The daemon


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"])
def test_daemon_serves_without_its_streams(certificates: Certificates, source: Path, streams: str) -> None:
    """Nothing takes the number of a stream that was closed: what a library writes there would be in an image."""
    with Daemon(certificates) as daemon:
        daemon.stop()
        command = shlex.join([sys.executable, "-m", MODULES["imageio-daemon"], "-c", str(daemon.directory)])
        process = subprocess.Popen(["bash", "-c", f"exec {command} {streams}"])
        try:
            arguments = ("ticket", "add", "--socket", daemon.control_socket, source)
            eventually(lambda: run("", "imageioctl", *arguments).status == 0, "it serves", timeout=TIMEOUT)
            for fd in range(3) if ">&-" in streams else ():
                assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == os.devnull
        finally:
            process.terminate()
            assert process.wait(TIMEOUT) == 0
