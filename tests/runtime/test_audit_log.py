# SPDX-License-Identifier: Apache-2.0
"""The audit log: what it keeps, in memory and in the state directory."""

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imageio_daemon.runtime import audit_log as module
from imageio_daemon.runtime.audit_log import AuditLog
from imageio_daemon.runtime.state import StateDirectory, open_state
from tests.support.polling import eventually

Start = Callable[[], AuditLog]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    os.chmod(tmp_path, 0o700)
    opened = open_state(str(tmp_path))
    assert opened is not None
    yield opened
    opened.close()


@pytest.fixture
def start(state: StateDirectory) -> Iterator[Start]:
    """Begin anew with what is kept, as another process does."""
    running: list[AuditLog] = []

    def begin() -> AuditLog:
        for events in running:
            assert events.close(10)
        running.append(AuditLog(state))
        return running[-1]

    yield begin
    assert running[-1].close(10)


def told(events: AuditLog, after: int = 0) -> list[dict[str, object]]:
    return [json.loads(line) for line in events.after(after)]


def test_event_has_number_time_details_and_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = AuditLog(None)
    events.tell("ticket extended", {"uid": 7, "pid": 8}, transfer="job", timeout=60)
    (event,) = told(events)
    time = event.pop("time")
    assert isinstance(time, str)
    assert time.endswith("Z")
    wanted = {"event": "ticket extended", "transfer": "job", "timeout": 60, "uid": 7, "pid": 8}
    assert event == {"number": 1, **wanted}
    assert [record.message for record in caplog.records] == ["ticket extended"]


def test_only_newer_events_are_told() -> None:
    events = AuditLog(None)
    for number in range(4):
        events.tell(f"event {number}")
    assert [event["number"] for event in told(events, after=2)] == [3, 4]


def test_oldest_events_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 1000)
    events = AuditLog(None)
    for _ in range(100):
        events.tell("ticket added", transfer="x" * 100)
    numbers = [event["number"] for event in told(events)]
    assert numbers == list(range(101 - len(numbers), 101))
    assert 3 < len(numbers) < 10


def test_events_outlive_the_process(start: Start) -> None:
    start().tell("first", {"uid": 1, "pid": 2})
    events = start()
    events.tell("second")
    assert [(event["number"], event["event"]) for event in told(start())] == [(1, "first"), (2, "second")]


def test_files_are_private(start: Start, tmp_path: Path) -> None:
    start().tell("first")
    start()
    assert (tmp_path / "events" / "events").stat().st_mode & 0o777 == 0o600


def test_torn_line_is_dropped_and_later_ones_are_not(start: Start, tmp_path: Path) -> None:
    start().tell("first")
    start()
    with (tmp_path / "events" / "events").open("ab") as f:
        f.write(b'{"number": 2, "eve')
    start().tell("second")
    assert [event["event"] for event in told(start())] == ["first", "second"]


@pytest.mark.parametrize("damage", [b"\xff\n", b"[1]\n", b'{"number": "x"}\n', b"[" * 100_000 + b"\n"], ids=repr)
def test_damaged_lines_are_dropped(start: Start, tmp_path: Path, damage: bytes) -> None:
    start().tell("first")
    start()
    with (tmp_path / "events" / "events").open("ab") as f:
        f.write(damage)
    assert [event["event"] for event in told(start())] == ["first"]


def test_files_take_turns(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE", 300)
    for number in range(9):
        start().tell(f"event {number}")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "events").iterdir()}
    assert sizes.keys() <= {"events", "events.1"}
    assert max(sizes.values()) < 500
    numbers = [event["number"] for event in told(start())]
    assert numbers[-1] == 9
    assert numbers == list(range(10))[-len(numbers) :]


def test_disk_that_fails_is_logged_once(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = start()
    (tmp_path / "events" / "events").mkdir()
    for _ in range(2):
        events.tell("lost")
        eventually(lambda: caplog.text.count("events are not kept") > 0, "the failure is logged")
    start()
    assert caplog.text.count("events are not kept in the state directory: Is a directory") == 1
    (tmp_path / "events" / "events").rmdir()
    start().tell("first")
    assert [event["event"] for event in told(start())] == ["first"]


def test_events_that_could_not_be_written_are_written_when_they_can(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    events = start()
    assert events.why_not_kept() == ""
    (tmp_path / "events" / "events").mkdir()
    events.tell("first")
    eventually(lambda: events.why_not_kept() == "Is a directory", "the failure is told")
    events.tell("second")
    (tmp_path / "events" / "events").rmdir()
    eventually(lambda: events.why_not_kept() == "", "all is written")
    lines = [json.loads(line) for line in (tmp_path / "events" / "events").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["first", "second"]


def test_line_that_a_full_disk_has_torn_is_written_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    real, faults = os.write, iter([True])

    def write(fd: int, data: bytes) -> int:
        if data.startswith(b"{") and next(faults, False):
            real(fd, data[:-3])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    events = start()
    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        events.tell("first")
        path = tmp_path / "events" / "events"
        eventually(lambda: path.exists() and path.read_text().endswith("\n"), "it is written again")
        assert path.read_text().count("first") == 1
    eventually(lambda: events.why_not_kept() == "", "all is written")
    assert [event["event"] for event in told(start())] == ["first"]


def test_directory_that_cannot_be_used_is_told(
    state: StateDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events").write_bytes(b"")
    events = AuditLog(state)
    assert "events cannot be kept in the state directory: Not a directory" in caplog.text
    assert events.why_not_kept() == "Not a directory"
    events.tell("first")
    assert len(told(events)) == 1
    assert events.close(0)


def test_disk_that_does_not_answer_costs_no_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 0)
    events = start()
    events.tell("first")
    events.tell("second")
    assert caplog.text.count("events are not kept in the state directory: the disk does not answer") == 1
