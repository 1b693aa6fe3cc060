# SPDX-License-Identifier: Apache-2.0
"""What a power cut may leave: the campaign's own model of the disk, and the library that tells the calls."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.storage.engine import async_io_error
from tests.soak.crash.calls import PowerCuts
from tests.soak.crash.sent import Range
from tests.support.killedcalls import NEVER, START, Death, begin, build_library

IMAGE, STATE = "/image", "/state/durable"
JOURNAL = f"{STATE}/journal"
SIZE = 100


def read(journal: bytes) -> list[Range]:
    """Read a journal of lines such as +10-20; each has a range, the last one counts."""
    lines = [line for line in journal.decode().split("\n")[:-1] if line]
    told = [line[1:].split("-") for line in lines if line[0] == "+" and f"-{line[1:]}" not in lines]
    return [(int(start), int(end)) for start, end in told]


class Calls:
    """Calls of a process, each begun and ended at once, unless they are under way in between."""

    def __init__(self) -> None:
        self.cuts = PowerCuts(IMAGE, SIZE, JOURNAL, read)
        self._lines = [START]
        self._numbers = itertools.count()
        self._written: dict[str, int] = {}

    def begin(self, name: str, path: str, offset: int = 0, length: int = 0, data: bytes = b"", to: str = "-") -> int:
        number = next(self._numbers)
        self._lines.append(f"+ {number} {name} {path} {to} {offset} {length} {offset} {length} {data.hex()}.")
        return number

    def end(self, number: int, result: int = 0) -> None:
        self._lines.append(f"- {number} {result}")

    def do(self, name: str, path: str, offset: int = 0, length: int = 0, data: bytes = b"", to: str = "-") -> None:
        self.end(self.begin(name, path, offset, length, data, to))

    def write(self, start: int, end: int) -> None:
        self.do("write", IMAGE, start, end - start)

    def flush(self) -> None:
        self.do("sync", IMAGE)

    def tell(self, line: str, path: str = JOURNAL) -> None:
        offset = self._written.get(path, 0)
        self._written[path] = offset + len(line)
        self.do("write", path, offset, len(line), line.encode())

    def sync(self, path: str = JOURNAL) -> None:
        self.do("sync", path)

    def die(self) -> None:
        self._lines += ["", START]

    def found(self) -> list[str]:
        self.cuts.follow(self._lines)
        return self.cuts.found


@pytest.fixture
def calls() -> Calls:
    return Calls()


def durable(calls: Calls) -> None:
    """Have a range written, flushed and told."""
    calls.write(10, 20)
    calls.flush()
    calls.tell("+10-20\n")
    calls.sync()


def test_what_was_flushed_may_be_told(calls: Calls) -> None:
    durable(calls)
    assert not calls.found()


def test_record_before_the_flush_is_found(calls: Calls) -> None:
    calls.write(10, 20)
    calls.tell("+10-20\n")
    calls.flush()
    assert calls.found()


def test_flush_that_began_before_the_write_ended_covers_nothing(calls: Calls) -> None:
    write = calls.begin("write", IMAGE, 10, 10)
    flush = calls.begin("sync", IMAGE)
    calls.end(write)
    calls.end(flush)
    calls.tell("+10-20\n")
    assert calls.found()


def test_flush_that_failed_covers_nothing(calls: Calls) -> None:
    calls.write(10, 20)
    calls.end(calls.begin("sync", IMAGE), -1)
    calls.tell("+10-20\n")
    assert calls.found()


def test_write_over_a_told_range_is_found(calls: Calls) -> None:
    durable(calls)
    calls.begin("write", IMAGE, 15, 1)
    assert calls.found()


def test_write_after_the_removal_was_made_durable_is_good(calls: Calls) -> None:
    durable(calls)
    calls.tell("-10-20\n")
    calls.sync()
    calls.write(10, 20)
    assert not calls.found()


def test_write_after_a_removal_that_is_not_durable_is_found(calls: Calls) -> None:
    durable(calls)
    calls.tell("-10-20\n")
    calls.write(10, 20)
    assert calls.found()


def test_write_during_a_flush_takes_its_range_out_of_it(calls: Calls) -> None:
    calls.write(10, 20)
    flush = calls.begin("sync", IMAGE)
    calls.write(15, 16)
    calls.end(flush)
    calls.tell("+10-20\n")
    assert calls.found()


def test_flush_after_a_death_covers_what_ran_then(calls: Calls) -> None:
    calls.begin("write", IMAGE, 10, 10)
    calls.die()
    calls.flush()
    calls.tell("+10-20\n")
    assert not calls.found()


def test_new_journal_that_tells_more_is_found_when_it_is_renamed(calls: Calls) -> None:
    calls.write(10, 20)
    calls.tell("+10-20\n", f"{STATE}/.new-1")
    calls.sync(f"{STATE}/.new-1")
    calls.do("rename", f"{STATE}/.new-1", to=JOURNAL)
    assert calls.found()


@pytest.mark.parametrize("synced", [True, False])
def test_old_journal_is_there_until_its_directory_is_synced(calls: Calls, synced: bool) -> None:
    durable(calls)
    calls.tell("\n", f"{STATE}/.new-1")
    calls.sync(f"{STATE}/.new-1")
    calls.do("rename", f"{STATE}/.new-1", to=JOURNAL)
    if synced:
        calls.sync(STATE)
    calls.write(10, 20)
    assert bool(calls.found()) is not synced


# The library

SCRIPT = """
import os, sys
image, state = sys.argv[1:]
fd = os.open(image, os.O_RDWR)
os.pwrite(fd, b"ab", 4096)
os.fdatasync(fd)
journal = os.open(state + "/new", os.O_WRONLY | os.O_CREAT)
os.write(journal, b"+1\\n")
os.fsync(journal)
os.rename(state + "/new", state + "/journal")
"""

#: The same write by io_submit(2), whose end io_getevents(2) tells. The numbers are those of this machine.
ASYNCHRONOUS = """
import ctypes, os, struct, sys
libc, context = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong()
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    assert libc.syscall(ctypes.c_long(number), *arguments) == 1 - (number == SETUP)
SETUP, GETEVENTS, SUBMIT = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}[os.uname().machine]
image = os.open(sys.argv[1], os.O_WRONLY)
data = ctypes.create_string_buffer(b"ab" * 4096, 8192)
block = ctypes.create_string_buffer(
    struct.pack("=QIiHhIQQqQII", 0, 0, 0, 1, 0, image, ctypes.addressof(data), 8192, 0, 0, 0, 0))
call(SETUP, ctypes.c_long(1), ctypes.byref(context))
call(SUBMIT, context, ctypes.c_long(1), ctypes.byref(ctypes.c_void_p(ctypes.addressof(block))))
call(GETEVENTS, context, ctypes.c_long(1), ctypes.c_long(1), ctypes.create_string_buffer(32), ctypes.c_void_p())
"""

#: What becomes of it where the kernel refuses asynchronous I/O (`make test REFUSE=io_setup:EAGAIN`): no call begins.
REFUSED: tuple[int, list[str]] = (1, [])

Run = Callable[..., "tuple[int, list[str]]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script below the library; return its status and the names of the calls that began."""
    library = build_library(tmp_path)
    image, state, trace = tmp_path / "image", tmp_path / "state", tmp_path / "trace"
    image.write_bytes(bytes(8192))
    state.mkdir()

    def run_it(death: Death, script: str = SCRIPT) -> tuple[int, list[str]]:
        with begin(library, trace, state, [image], death):
            status = subprocess.run([sys.executable, "-c", script, image, state], check=False).returncode
        return status, [line.split(" ")[2] for line in trace.read_text().splitlines() if line.startswith("+")]

    return run_it


def test_calls_are_told(run: Run) -> None:
    assert run(NEVER) == (0, ["write", "sync", "create", "write", "sync", "rename"])


def test_process_dies_before_a_call(run: Run, tmp_path: Path) -> None:
    assert run(Death("w", "b", 1)) == (-signal.SIGKILL, ["write"])
    assert (tmp_path / "image").read_bytes() == bytes(8192)


def test_process_dies_after_a_call(run: Run, tmp_path: Path) -> None:
    assert run(Death("w", "a", 1)) == (-signal.SIGKILL, ["write"])
    assert os.pread(os.open(tmp_path / "image", os.O_RDONLY), 2, 4096) == b"ab"


def test_process_dies_in_the_middle_of_a_call(run: Run, tmp_path: Path) -> None:
    assert run(Death("j", "m", 2)) == (-signal.SIGKILL, ["write", "sync", "create", "write"])
    assert (tmp_path / "state" / "new").read_bytes() == b"+"


def test_asynchronous_write_is_told_from_its_begin_to_its_end(run: Run, tmp_path: Path) -> None:
    began, length, told = (REFUSED, 0, START) if async_io_error() else ((0, ["write"]), 8192, "- 0 8192")
    assert run(NEVER, ASYNCHRONOUS) == began
    assert (tmp_path / "image").read_bytes() == (b"ab" * 4096)[:length] + bytes(8192 - length)
    assert (tmp_path / "trace").read_text().splitlines()[-1] == told


@pytest.mark.parametrize(("when", "length"), [("b", 0), ("m", 4096), ("a", 8192)])
def test_process_dies_at_an_asynchronous_write(run: Run, tmp_path: Path, when: str, length: int) -> None:
    began, length = (REFUSED, 0) if async_io_error() else ((-signal.SIGKILL, ["write"]), length)
    assert run(Death("w", when, 1), ASYNCHRONOUS) == began
    assert (tmp_path / "image").read_bytes() == (b"ab" * 4096)[:length] + bytes(8192 - length)
