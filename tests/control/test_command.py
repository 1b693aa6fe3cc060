# SPDX-License-Identifier: Apache-2.0
"""imageioctl as a command: its errors, its imports, and its man page."""

import argparse
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.control import service
from imageio_daemon.control.arguments import parser
from tests.control.conftest import PROGRAM, TIMEOUT, Ctl, run
from tests.support.commands import commands, man_page
from tests.support.daemon import PROJECT, Daemon

MAN_PAGE = PROJECT / "docs" / "imageioctl.1"
GUIDE = PROJECT / "docs" / "imageioctl.md"
COMMANDS = dict(commands(parser()))


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[list[bytes]]:
    """A socket `strange` that answers a request with what is put into the list."""
    answers: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "strange"))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"".join(answers))

        thread = threading.Thread(target=serve)
        thread.start()
        yield answers
        thread.join()


def test_missing_socket_is_told_with_what_to_do() -> None:
    run("ticket", "list", "--socket", "/no/such/socket").failed_with(
        "/no/such/socket: No such .*: is imageio-daemon", 4
    )


def test_socket_of_others_is_told_with_what_to_do(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, who becomes another user")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("/tmp/imageioctl-of-root")
        try:
            os.chmod("/tmp/imageioctl-of-root", 0o600)
            program = ["setpriv", "--reuid=65534", "--clear-groups", *PROGRAM, "transfers"]
            arguments = ["--socket", "/tmp/imageioctl-of-root"]
            done = subprocess.run([*program, *arguments], check=False, capture_output=True, text=True, timeout=TIMEOUT)
        finally:
            os.unlink("/tmp/imageioctl-of-root")
    assert (done.returncode, done.stdout) == (4, "")
    assert "only root and the group of the service may use it (user 65534 may not)" in done.stderr


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed connection without response"),
        (b"SSH-2.0-Other\r\n", "does not answer as the control socket of imageio-daemon"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "is not the control socket of imageio-daemon"),
    ],
    ids=["none", "other", "web"],
)
def test_socket_of_another_program_is_told(tmp_path: Path, answering: list[bytes], answer: bytes, reason: str) -> None:
    answering.append(answer)
    run("ticket", "list", "--socket", tmp_path / "strange").failed_with(reason, 4)


def test_error_is_told_as_json_too(ctl: Ctl) -> None:
    done = ctl("ticket", "show", "--json", "nobody")
    assert (done.status, done.out) == (3, '{"error": "no ticket has the name nobody", "status": 3}\n')


def test_reader_that_goes_away_is_told_by_the_status(daemon: Daemon) -> None:
    command = [*PROGRAM, "transfers", "--watch", "--socket", daemon.control_socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(TIMEOUT) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("arguments", [[], ["ticket"], ["ticket", "add"], ["ticket", "extend", "--timeout", "x", "a"]])
def test_wrong_arguments_have_status_2(arguments: list[str]) -> None:
    assert run(*arguments).status == 2


def test_starts_without_the_server() -> None:
    """What the daemon needs takes a quarter of a second to import."""
    program = "import sys, imageio_daemon.control.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"aiohttp", "uvloop", "asyncio", "prometheus_client", "imageio_daemon.daemon"} & set(loaded)


@pytest.mark.parametrize("name", COMMANDS)
def test_man_page_and_help_agree(name: str) -> None:
    options: argparse.ArgumentParser = COMMANDS[name]
    there = {option for action in options._actions for option in action.option_strings if option.startswith("--")}
    page = man_page(MAN_PAGE)
    assert "" not in page  # all options are below a command
    assert page[name] | page["Common"] == there - {"--help"}


def test_man_page_has_all_commands() -> None:
    assert man_page(MAN_PAGE).keys() - {"Common"} == COMMANDS.keys()
    synopsis = MAN_PAGE.read_text().partition(".SH SYNOPSIS")[2].partition(".SH")[0]
    assert set(re.findall(r"^\.B imageioctl (.+)$", synopsis, re.MULTILINE)) == COMMANDS.keys()


def test_pages_have_all_statuses() -> None:
    kinds = [
        kind for kind in vars(service).values() if isinstance(kind, type) and issubclass(kind, service.ControlError)
    ]
    wanted = {0, 130} | {kind.status for kind in kinds}
    told = MAN_PAGE.read_text().partition(".SH EXIT STATUS")[2].partition("\n.SH")[0]
    assert {int(status) for status in re.findall(r"^\.B (\d+)$", told, re.MULTILINE)} == wanted
    assert {int(status) for status in re.findall(r"^\| (\d+) \|", GUIDE.read_text(), re.MULTILINE)} == wanted
