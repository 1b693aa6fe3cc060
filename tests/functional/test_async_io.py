# SPDX-License-Identifier: Apache-2.0
"""Asynchronous I/O of the kernel is used where it is, and never needed. The same holds for io_uring."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.storage.engine import async_io_error
from tests.control.conftest import PROGRAM
from tests.support import refusing
from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import MiB, make_image, pattern
from tests.support.processes import open_files

CONTENT = pattern(3 * MiB, seed=1)


@pytest.fixture(scope="module", params=["EAGAIN", "EPERM", "ENOSYS"])
def error(request: pytest.FixtureRequest) -> str:
    """How the kernel refuses asynchronous I/O."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def refused(certificates: Certificates, error: str) -> Iterator[Daemon]:
    """A daemon whose kernel has no asynchronous I/O."""
    config = {"backend_file": {"qcow2": "qemu-nbd"}}
    with Daemon(certificates, config, wrapper=refusing.wrapper(f"io_setup:{error}")) as daemon:
        yield daemon


def has_context(daemon: Daemon) -> bool:
    """Tell whether the kernel has made a context for the daemon: its events are in memory of the process."""
    return "[aio]" in Path(f"/proc/{daemon.pid}/maps").read_text()


def write_and_read(connection: Connection, url: str) -> None:
    for _ in range(2):
        assert connection.put(url, CONTENT).status == 200
        assert connection.get(url).body == CONTENT


def test_without_it_threads_read_and_write(refused: Daemon, tmp_path: Path) -> None:
    image = make_image(refused, tmp_path)(size=len(CONTENT))
    with refused.connect("unix") as connection:
        write_and_read(connection, image.url)
    assert image.content() == CONTENT
    assert not has_context(refused)


def test_without_it_qemu_nbd_has_threads_too(refused: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "image.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, str(len(CONTENT))], check=True)
    image = make_image(refused, tmp_path)(path=path, ticket_size=len(CONTENT), format="qcow2")
    with refused.connect("unix") as connection:
        write_and_read(connection, image.url)
    refused.log.wait_for(r"WARNING .*is started again, with threads that read and write")


def test_a_refusal_is_in_the_log(refused: Daemon, error: str) -> None:
    refused.log.wait_for(rf"WARNING .*{refusing.NO_AIO}.* error=\"{os.strerror(getattr(errno, error))}\"")


def test_a_check_tells_it(refused: Daemon, error: str) -> None:
    command = [*refusing.wrapper(f"io_setup:{error}"), *PROGRAM, "check", "--conf-dir", str(refused.directory)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert f"{refusing.NO_AIO} ({os.strerror(getattr(errno, error))}, " in told


def test_it_is_used_where_it_is_and_else_told(make_daemon: MakeDaemon) -> None:
    """What this host has decides, which `make test REFUSE=io_setup:EAGAIN` changes."""
    daemon = make_daemon()
    daemon.log.wait_for(r"INFO .*ready")
    is_told = daemon.log.find(refusing.NO_AIO) is not None
    assert (is_told, has_context(daemon)) == ((True, False) if async_io_error() else (False, True))


def test_io_uring_is_not_needed(certificates: Certificates, tmp_path: Path) -> None:
    """The event loop asks the kernel for it."""
    with Daemon(certificates, wrapper=refusing.wrapper("io_uring_setup:EPERM")) as daemon:
        image = make_image(daemon, tmp_path)(size=len(CONTENT))
        for service in ("unix", "tls"):
            with daemon.connect(service) as connection:
                write_and_read(connection, image.url)
        assert "anon_inode:[io_uring]" not in open_files(daemon.pid).values()
