# SPDX-License-Identifier: Apache-2.0
"""Servers of a daemon that was killed: which processes they are, and how long they are waited for."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.errors import Unavailable
from imageio_daemon.storage.nbd import leftovers
from tests.support.polling import eventually

NODE = {"driver": "qcow2", "file": {"driver": "file", "filename": "/images/a"}, "backing": None}
OTHER = {"driver": "qcow2", "file": {"driver": "file", "filename": "/images/b"}, "backing": None}

#: What a process does that is told to do nothing else; sh has its arguments meanwhile.
FOR_EVER = "while :; do sleep 0.05; done"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


def state(pid: int) -> str:
    """Return the state of a process (proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def left(run_dir: Path) -> Iterator[int]:
    """A process that nobody has any more, with the arguments of a server; it has not come to its end yet."""
    words = ["sh", "-c", f"echo $$; {FOR_EVER}", f"--socket={run_dir}/qemu-nbd-x/socket", f"json:{json.dumps(NODE)}"]
    with subprocess.Popen(
        ["sh", "-c", '"$@" & exit 0', "sh", *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.stdout.close()
    os.kill(pid, signal.SIGSTOP)  # not before: the kernel wakes what is stopped when its parent ends
    eventually(lambda: state(pid) == "T", "it is stopped: of signals that wait, SIGTERM comes before SIGSTOP")
    yield pid
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_asked_to_end(pid: int) -> bool:
    """Tell whether a process that is stopped has a SIGTERM to come (proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = next(line.split()[1] for line in lines if line.startswith("ShdPnd"))
    return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)


async def test_one_with_the_image_is_asked_to_end_and_waited_for(left: int, run_dir: Path) -> None:
    waiting = asyncio.create_task(leftovers.ended(str(run_dir), NODE))
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    assert is_asked_to_end(left)
    os.kill(left, signal.SIGCONT)
    await waiting


async def test_one_that_does_not_end_makes_the_image_unavailable(
    left: int, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "STOP_TIMEOUT", 0.2)
    with pytest.raises(Unavailable, match="still being closed"):
        await leftovers.ended(str(run_dir), NODE)
    assert Path(f"/proc/{left}").exists()


async def test_one_with_a_file_below_the_image_is_waited_for(
    left: int, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "STOP_TIMEOUT", 0.2)
    with pytest.raises(Unavailable):
        await leftovers.ended(str(run_dir), OTHER | {"backing": NODE})


async def test_one_with_another_image_is_left_alone(left: int, run_dir: Path) -> None:
    await leftovers.ended(str(run_dir), OTHER)
    assert not is_asked_to_end(left)


async def test_one_of_another_run_directory_is_left_alone(left: int, tmp_path: Path) -> None:
    await leftovers.ended(str(tmp_path / "other"), NODE)
    assert not is_asked_to_end(left)


async def test_server_of_this_process_is_left_alone(run_dir: Path) -> None:
    words = [f"--socket={run_dir}/qemu-nbd-x/socket", f"json:{json.dumps(NODE)}"]
    with subprocess.Popen(["sh", "-c", FOR_EVER, *words]) as process:
        await leftovers.ended(str(run_dir), NODE)
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("said", ["json:{", "json:[]", "json:1", "json", ""])
async def test_process_whose_arguments_name_no_image_is_left_alone(run_dir: Path, said: str) -> None:
    words = ["sh", "-c", FOR_EVER, f"--socket={run_dir}/qemu-nbd-x/socket", said]
    with subprocess.Popen(words) as process:
        await leftovers.ended(str(run_dir), NODE)
        assert process.poll() is None
        process.kill()


async def test_no_descriptor_of_a_process_is_left(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise FileNotFoundError

    monkeypatch.setattr(leftovers, "_is_left", fail)
    before = len(os.listdir("/proc/self/fd"))
    await leftovers.ended(str(run_dir), NODE)
    assert len(os.listdir("/proc/self/fd")) == before
