# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imageio_daemon.runtime import logs

log = logging.getLogger("imageio_daemon.some.module")


class Pipe:
    """A pipe that is logged to."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def read(self) -> str:
        """Return all that was written. Closes the write end, so that there is an end."""
        self.close_writer()
        return self.read_to_end()

    def read_to_end(self) -> str:
        """Return all that is written until the write end is closed."""
        with open(self.read_end, "rb", closefd=False) as f:
            return f.read().decode()

    def close_reader(self) -> None:
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def close_writer(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close_reader()
    pipe.close_writer()


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, __file__, 1, message, arguments, None)


def logged(pipe: Pipe, call: Callable[[], object], style: str = "text") -> str:
    """Return what a call logs."""
    with logs.setup("info", style, pipe.write_end):
        call()
    return pipe.read()


def logged_json(pipe: Pipe, call: Callable[[], object]) -> dict[str, Any]:
    line = logged(pipe, call, "json")
    assert line.count("\n") == 1
    data: dict[str, Any] = json.loads(line)
    return data


def test_text_line_has_time_level_logger_message_and_fields(pipe: Pipe) -> None:
    line = logged(pipe, lambda: log.info("transfer ended", extra=logs.fields(transfer="ab12", bytes=4096)))
    time, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == "INFO    some.module: transfer ended transfer=ab12 bytes=4096\n"


def test_json_line_has_time_level_logger_message_and_fields(pipe: Pipe) -> None:
    data = logged_json(pipe, lambda: log.info("transfer %s", "ended", extra=logs.fields(transfer="ab12", bytes=4096)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", data.pop("time"))
    assert data == {
        "level": "info",
        "logger": "imageio_daemon.some.module",
        "message": "transfer ended",
        "transfer": "ab12",
        "bytes": 4096,
    }


def test_time_is_utc() -> None:
    then = record("now")
    then.created = 86400.25
    assert logs.TextFormatter().format(then).startswith("1970-01-02T00:00:00.250Z ")


def test_text_value_that_could_look_like_other_fields_is_quoted(pipe: Pipe) -> None:
    line = logged(pipe, lambda: log.info("x", extra=logs.fields(name='a b="c', empty="")))
    assert line.endswith('x name="a b=\\"c" empty=""\n')


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "a\x0bb", "a\x85b", "a\u2028b", "a\x1b[2Jb", "a\u202eb", "a\udc80b"], ids=ascii
)
def test_unprintable_text_of_a_peer_is_escaped(pipe: Pipe, text: str) -> None:
    line = logged(pipe, lambda: log.info("message %s", text, extra=logs.fields(field=text)))
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_unprintable_text_of_a_peer_is_escaped_in_json(pipe: Pipe) -> None:
    assert logged_json(pipe, lambda: log.info("a\nb\u2028c"))["message"] == "a\nb\u2028c"


def test_text_of_all_languages_is_kept(pipe: Pipe) -> None:
    assert logged(pipe, lambda: log.info("prénom 名前")).endswith("prénom 名前\n")


def fail() -> None:
    log.error("failed", exc_info=RuntimeError("first\n2026-01-01T00:00:00.000Z INFO    forged: line"))


def test_traceback_is_indented_below_its_line(pipe: Pipe) -> None:
    first, *rest = logged(pipe, fail).splitlines()
    assert first.endswith("ERROR   some.module: failed")
    assert rest == ["    RuntimeError: first", "    2026-01-01T00:00:00.000Z INFO    forged: line"]


def test_traceback_is_part_of_the_json_line(pipe: Pipe) -> None:
    assert "RuntimeError: first" in logged_json(pipe, fail)["traceback"]


def test_stack_is_logged_as_a_traceback(pipe: Pipe) -> None:
    assert "\n    Stack (most recent call last):" in logged(pipe, lambda: log.info("here", stack_info=True))


def test_field_does_not_replace_what_every_json_line_has(pipe: Pipe) -> None:
    data = logged_json(pipe, lambda: log.info("true", extra=logs.fields(message="false", level="debug")))
    assert (data["message"], data["level"]) == ("true", "info")


def test_field_of_any_type_can_be_json(pipe: Pipe) -> None:
    assert logged_json(pipe, lambda: log.info("x", extra=logs.fields(error=OSError("no"))))["error"] == "no"


def test_what_is_below_the_level_is_not_logged(pipe: Pipe) -> None:
    assert logged(pipe, lambda: log.debug("detail")) == ""


def test_setup_leaves_nothing_behind(pipe: Pipe) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    logged(pipe, lambda: None)
    assert (root.level, root.handlers) == before


def test_setup_is_undone_after_an_error(pipe: Pipe) -> None:
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(KeyError), logs.setup("info", "text", pipe.write_end):
        raise KeyError
    assert logging.getLogger().handlers == handlers


def test_message_that_does_not_match_its_arguments_does_not_reach_the_caller(
    pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logs.LineHandler(pipe.write_end)
    handler.emit(record("%d", "text"))
    handler.close()
    assert "Logging error" in capsys.readouterr().err


def test_lines_that_a_stuck_reader_leaves_no_room_for_are_dropped_and_counted(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING", 64 * 1024)
    handler = logs.LineHandler(pipe.write_end)
    handler.setFormatter(logs.TextFormatter())
    for number in range(1000):
        handler.emit(record(f"{number} {'x' * 1000}"))
    # The reader wakes up.
    with concurrent.futures.ThreadPoolExecutor() as executor:
        reading = executor.submit(pipe.read_to_end)
        handler.close()
        pipe.close_writer()
        lines = reading.result().splitlines()
    dropped = [int(match[1]) for line in lines if (match := re.search(r": log lines dropped count=(\d+)$", line))]
    assert sum(dropped) > 0
    assert sum(dropped) + len(lines) - len(dropped) == 1000


def test_stuck_reader_does_not_hold_up_the_end(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "STOP_TIMEOUT", 0.05)
    handler = logs.LineHandler(pipe.write_end)
    handler.emit(record("x" * 500000))
    handler.close()
    # Let the thread end.
    pipe.close_reader()
    handler.join()


def test_reader_that_is_gone_is_no_error(pipe: Pipe) -> None:
    pipe.close_reader()
    with logs.setup("info", "text", pipe.write_end):
        log.info("nobody hears")


def test_non_blocking_descriptor_gets_everything(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_end, False)
    size = 500000
    handler = logs.LineHandler(pipe.write_end)
    handler.emit(record("x" * size))
    read = 0
    while read < size + 1:
        read += len(os.read(pipe.read_end, 65536))
    handler.close()
    assert read == size + 1


def test_log_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with logs.setup("info", "text"):
        log.info("hello")
    assert capfd.readouterr().err.endswith("hello\n")


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2), (logging.INFO + 1, 6)],
)
def test_line_for_the_journal_begins_with_its_priority(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, level: int, priority: int
) -> None:
    pretend_journal(pipe, monkeypatch)
    assert logged(pipe, lambda: log.log(level, "hello")).startswith(f"<{priority}>20")


def test_each_line_of_a_traceback_has_the_priority_in_the_journal(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_journal(pipe, monkeypatch)
    lines = logged(pipe, fail).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("<3>") for line in lines)


def test_line_for_a_descriptor_that_is_not_the_journal_has_no_priority(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert logged(pipe, lambda: log.info("hello")).startswith("20")


def test_closed_descriptor_is_not_the_journal() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.close(write_end)
    logs.LineHandler(write_end).close()


def pretend_journal(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment say that systemd reads the pipe."""
    status = os.fstat(pipe.write_end)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
