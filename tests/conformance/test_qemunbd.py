# SPDX-License-Identifier: Apache-2.0
"""The process that a managed image has: how it starts, and how it ends."""

import asyncio
import errno
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.errors import ImageInUse, StorageError, Unusable
from imageio_daemon.image import chain
from imageio_daemon.runtime.background import in_thread
from imageio_daemon.storage.nbd import process as qemu_process
from imageio_daemon.storage.nbd.process import QemuNbd, QemuServer
from tests.support.polling import eventually_async
from tests.support.processes import open_files


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.qcow2"
    subprocess.check_call(["qemu-img", "create", "-q", "-f", "qcow2", path, "1M"])
    return path


async def start(image: Path, run_dir: Path) -> QemuNbd:
    found = chain.inspect(chain.QemuImage(str(image), "qcow2", backing_chain=True, allowed=[]))
    return await QemuNbd.start(found, str(image), QemuServer(str(run_dir), 1, writable=True))


@pytest.fixture
async def server(image: Path, run_dir: Path) -> AsyncIterator[QemuNbd]:
    server = await start(image, run_dir)
    yield server
    await server.stop()
    assert not list(run_dir.iterdir())


def pid(server: QemuNbd) -> int:
    """Return its number. It may serve before the thread that has started it knows that."""
    with server._lock:
        assert server._process is not None
        return server._process.pid


def flags_of(process: int, opened: Path) -> int:
    """Return the flags that a process has opened a file with."""
    for descriptor, name in open_files(process).items():
        if name == str(opened):
            text = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text()
            return int(next(line.split()[1] for line in text.splitlines() if line.startswith("flags")), 8)
    raise AssertionError(f"{process} does not have {opened}")


async def test_it_uses_direct_io(server: QemuNbd, image: Path) -> None:
    assert flags_of(pid(server), image) & os.O_DIRECT


async def test_it_uses_the_page_cache_where_there_is_no_direct_io(image: Path, run_dir: Path) -> None:
    found = chain.inspect(chain.QemuImage(str(image), "qcow2", backing_chain=True, allowed=[]))
    found.direct = False
    server = await QemuNbd.start(found, str(image), QemuServer(str(run_dir), 1, writable=True))
    assert not flags_of(pid(server), image) & os.O_DIRECT
    await server.stop()


async def test_it_has_no_descriptors_of_ours(image: Path, run_dir: Path, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        server = await start(image, run_dir)
        opened = open_files(pid(server)).values()
        await server.stop()
    assert file.name not in opened


def page_faults(process: int) -> int:
    """Return how many pages the kernel has given it: minflt of proc_pid_stat(5)."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[7])


async def test_requests_use_memory_that_earlier_ones_had(server: QemuNbd, image: Path, tmp_path: Path) -> None:
    """qemu-nbd takes a buffer for each request: by default glibc maps and unmaps each, 256 pages of this one."""
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20))
    copy = ["nbdcopy", "--request-size=1048576", "--", str(data), f"nbd+unix:///?socket={server.address.socket}"]

    def copies(count: int) -> None:
        for _ in range(count):
            subprocess.check_call(copy)

    await in_thread(lambda: copies(16))  # its heap grows with the first ones
    faults = page_faults(pid(server))
    await in_thread(lambda: copies(16))
    assert page_faults(pid(server)) - faults < 16 * 64


async def test_stopping_twice_is_no_error(server: QemuNbd) -> None:
    await server.stop()
    await server.stop()


async def test_stopping_one_that_was_killed_is_no_error(server: QemuNbd) -> None:
    os.kill(pid(server), signal.SIGKILL)
    await server.stop()


async def test_one_that_does_not_end_is_killed(
    server: QemuNbd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(qemu_process, "STOP_TIMEOUT", 0.1)
    os.kill(pid(server), signal.SIGSTOP)
    await server.stop()
    assert "is killed" in caplog.text


async def test_one_that_loses_a_signal_while_it_starts_is_sent_another(
    image: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "qemu-nbd"
    program.write_text(
        "#!/bin/sh\n"
        "trap 'trap - TERM' TERM\n"
        'for word; do case $word in --pid-file=*) echo $$ >"${word#*=}" ;; esac; done\n'
        "while :; do sleep 0.01; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server = await start(image, run_dir)
    await server.stop()
    assert "is killed" not in caplog.text


async def test_one_that_ends_by_itself_is_logged(server: QemuNbd, caplog: pytest.LogCaptureFixture) -> None:
    os.kill(pid(server), signal.SIGKILL)
    await in_thread(server._ended.result)
    assert "ended with status -9" in caplog.text


async def test_a_server_that_never_serves_is_an_error(
    image: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu_process, "START_TIMEOUT", -1)
    monkeypatch.setattr(QemuNbd, "_is_ready", lambda server: False)  # it may be, before anybody looks
    with pytest.raises(StorageError) as failure:
        await start(image, run_dir)
    assert failure.value.errno == errno.ETIMEDOUT
    assert not list(run_dir.iterdir())


async def test_an_image_that_is_in_use_is_refused(server: QemuNbd, image: Path, run_dir: Path) -> None:
    with pytest.raises(ImageInUse):
        await start(image, run_dir)


@pytest.mark.parametrize("missing", ["qemu-nbd", "setpriv"])
async def test_a_missing_program_is_named(
    image: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / ({"qemu-nbd", "setpriv"} - {missing}).pop()).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(Unusable, match=missing) as failure:  # the image is there
        await start(image, run_dir)
    assert "lacks a program" in failure.value.told


async def test_a_program_that_cannot_be_started_is_an_error(
    image: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("qemu-nbd", "setpriv"):
        (programs / name).write_bytes(b"\x7fELF of nothing")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(StorageError, match="cannot be started"):
        await start(image, run_dir)


async def test_a_start_that_is_cancelled_leaves_no_directory(
    image: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, prepare = threading.Event(), qemu_process._prepare
    made: list[str] = []

    def wait_and_prepare(where: str, node: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        may_end.wait()
        prepared = prepare(where, node)
        made.append(prepared[0])
        return prepared

    monkeypatch.setattr(qemu_process, "_prepare", wait_and_prepare)
    starting = asyncio.create_task(start(image, run_dir))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    may_end.set()
    await eventually_async(lambda: bool(made) and not list(run_dir.iterdir()))


async def test_a_link_that_cannot_be_made_is_an_error_and_leaves_no_directory(
    image: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(os, "symlink", fail)
    named = image.with_name("image-\udcff")
    image.rename(named)
    with pytest.raises(StorageError, match="symlink") as failure:
        await start(named, run_dir)
    assert failure.value.errno == errno.ENOSPC
    assert not list(run_dir.iterdir())


async def test_a_missing_run_directory_is_an_error(image: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="mkdtemp"):
        await start(image, tmp_path / "missing")


async def test_what_a_thread_raises_is_raised_where_it_was_asked_for() -> None:
    def fail() -> None:
        raise ValueError("in the thread")

    with pytest.raises(ValueError, match="in the thread"):
        await in_thread(fail)
