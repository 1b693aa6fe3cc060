# SPDX-License-Identifier: Apache-2.0
"""Notifications reach a command or a socket, in order, and wait for nobody for ever."""

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.service import notifying
from imageio_daemon.service.notifying import Notifier
from tests.support.polling import eventually

Make = Callable[[str], Notifier]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Notifier] = []

    def notifier(target: str) -> Notifier:
        made.append(Notifier(target))
        return made[-1]

    yield notifier
    for one in made:
        one.close(10)
        if one.wanted:
            one._thread.join(10)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """Make a command of shell lines, whose directory is its first argument."""

    def command(lines: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return f"{path} '{tmp_path}'"

    return command


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_command_gets_each_on_its_input_in_order(make: Make, program: Callable[[str], str], tmp_path: Path) -> None:
    notifier = make(program('cat >> "$1/told"'))
    for number in range(3):
        notifier.tell("it happened", number=number)
    eventually(lambda: notifier.sent == 3, "all are delivered")
    told = lines_of(tmp_path / "told")
    assert [(line["event"], line["number"]) for line in told] == [("it happened", n) for n in range(3)]
    assert told[0]["time"].endswith("Z")


def test_command_finds_nothing_of_the_daemon(
    make: Make, program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    notifier = make(program('env > "$1/env"; pwd > "$1/pwd"; ls /proc/self/fd | wc -l > "$1/fds"'))
    notifier.tell("it happened")
    eventually(lambda: notifier.sent == 1, "it is delivered")
    os.close(descriptor)
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PATH", "LANG", "PWD", "_", "SHLVL", "OLDPWD"}
    assert (tmp_path / "pwd").read_text() == "/\n"
    assert int((tmp_path / "fds").read_text()) <= 4  # three, and that of the directory that ls reads


def test_socket_gets_each_over_a_connection(make: Make, tmp_path: Path) -> None:
    with socket.create_server(str(tmp_path / "sock"), family=socket.AF_UNIX) as server:
        notifier = make(f"unix:{tmp_path}/sock")
        for number in range(2):
            notifier.tell("it happened", number=number)
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                assert json.loads(stream.read())["number"] == number


def test_abstract_socket_is_reached(make: Make) -> None:
    name = f"notify-{os.getpid()}"
    with socket.create_server(f"\0{name}", family=socket.AF_UNIX) as server:
        make(f"unix:@{name}").tell("it happened")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1000).endswith(b"}\n")


def test_receiver_that_comes_back_misses_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "FIRST_DELAY", 0.01)
    tried = threading.Event()
    send = notifying._send

    def notice(address: str, line: bytes) -> None:
        try:
            send(address, line)
        finally:
            tried.set()

    monkeypatch.setattr(notifying, "_send", notice)
    notifier = make(f"unix:{tmp_path}/sock")
    notifier.tell("it happened")
    assert tried.wait(10)
    with socket.create_server(str(tmp_path / "sock"), family=socket.AF_UNIX) as server:
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1000)
        eventually(lambda: notifier.sent == 1, "it is delivered")


def test_failures_are_counted_and_told_once(
    make: Make,
    program: Callable[[str], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifying, "RETRY_FOR", 0)
    notifier = make(program('test -e "$1/good"'))
    with caplog.at_level(logging.INFO):
        notifier.tell("first")
        notifier.tell("second")
        eventually(lambda: notifier.failed == 2, "both have failed")
        (tmp_path / "good").touch()
        notifier.tell("third")
        eventually(lambda: notifier.sent == 1, "the third is delivered")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "notifications are not delivered",
        "notifications are delivered again",
    ]
    assert "exit status 1" in caplog.text


def test_command_that_hangs_is_killed(
    make: Make, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "RETRY_FOR", 0)
    monkeypatch.setattr(notifying, "DELIVERY_TIMEOUT", 0.1)
    notifier = make(program("exec sleep 1000"))
    notifier.tell("it happened")
    eventually(lambda: notifier.failed == 1, "it has failed")


def test_command_that_is_missing_is_told(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "RETRY_FOR", 0)
    notifier = make("/no/such/program")
    notifier.tell("it happened")
    eventually(lambda: notifier.failed == 1, "it has failed")
    assert "No such file" in caplog.text


def test_too_many_are_lost_and_the_next_tells_how_many(
    make: Make, program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "MAX_WAITING", 2)
    notifier = make(program('until [ -e "$1/gate" ]; do sleep 0.01; done; cat >> "$1/told"'))
    notifier.tell("begins")
    eventually(lambda: not notifier._waiting, "the command runs")
    for number in range(5):
        notifier.tell("more", number=number)
    assert notifier.lost == 3
    (tmp_path / "gate").touch()
    eventually(lambda: notifier.sent == 3, "what has waited is delivered")
    notifier.tell("next")
    eventually(lambda: notifier.sent == 4, "the next is delivered")
    assert [line.get("lost") for line in lines_of(tmp_path / "told")] == [None, None, None, 3]


def test_end_delivers_what_waits(make: Make, program: Callable[[str], str], tmp_path: Path) -> None:
    notifier = make(program('cat >> "$1/told"'))
    for number in range(5):
        notifier.tell("it happened", number=number)
    notifier.close(30)
    assert len(lines_of(tmp_path / "told")) == 5


def test_end_waits_for_no_command_that_hangs(
    make: Make, program: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = make(program('touch "$1/runs"; exec sleep 1000'))
    notifier.tell("first")
    notifier.tell("second")
    eventually((tmp_path / "runs").exists, "the command runs")
    notifier.close(0.1)
    assert "1 notifications are not delivered" in caplog.text


def test_nobody_is_told_without_a_target(make: Make) -> None:
    notifier = make("")
    notifier.tell("it happened")
    assert not notifier._waiting
