# SPDX-License-Identifier: Apache-2.0
"""Ranges of files that the kernel sends."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client.errors import LocalError
from imageio_daemon.client.file_part import FilePart
from imageio_daemon.client.transfer.zeros import STEP, runs
from tests.support.images import KiB, pattern

CONTENT = pattern(64 * KiB)


def failed(offset: int, error: OSError | None) -> LocalError:
    return LocalError(f"{offset} {None if error is None else error.errno}")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(CONTENT)
    opened = os.open(tmp_path / "file", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_part_stands_for_its_bytes(fd: int) -> None:
    part = FilePart(fd, 1000, 5000, failed)
    assert len(part) == 5000
    assert part[7] == CONTENT[1007]
    assert part.read() == CONTENT[1000:6000]
    assert part[100:200][10:].read() == CONTENT[1110:1200]
    assert not FilePart(fd, 1000, 0, failed)


def test_runs_of_zeros_are_those_of_its_bytes(tmp_path: Path) -> None:
    content = pattern(STEP) + bytes(2 * STEP) + b"\0data" + bytes(STEP)
    (tmp_path / "zeros").write_bytes(content)
    with (tmp_path / "zeros").open("rb") as file:
        part = FilePart(file.fileno(), 0, len(content), failed)
        assert list(runs(part, 0)) == list(runs(memoryview(content), 0))


def test_kernel_sends_it(fd: int, sockets: tuple[socket.socket, socket.socket]) -> None:
    assert FilePart(fd, 1000, 5000, failed).send(sockets[0]) == 5000
    assert sockets[1].recv(5000, socket.MSG_WAITALL) == CONTENT[1000:6000]


def test_what_the_kernel_cannot_send_is_read(sockets: tuple[socket.socket, socket.socket]) -> None:
    with open("/proc/self/auxv", "rb") as file:
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            os.sendfile(sockets[0].fileno(), file.fileno(), 0, 5)
        assert FilePart(file.fileno(), 0, 5, failed).send(sockets[0]) == 5
        assert sockets[1].recv(5) == file.read(5)


def test_socket_that_takes_nothing_is_an_error(fd: int, sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[0].settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            sockets[0].send(bytes(64 * KiB))
    with pytest.raises(BlockingIOError):
        FilePart(fd, 0, 1, failed).send(sockets[0])


def test_file_that_ends_before_has_failed(fd: int, sockets: tuple[socket.socket, socket.socket]) -> None:
    part = FilePart(fd, len(CONTENT) - 10, 20, failed)
    with pytest.raises(LocalError, match=f"{len(CONTENT)} None"):
        part.read()
    assert part.send(sockets[0]) == 10
    with pytest.raises(LocalError, match=f"{len(CONTENT)} None"):
        part[10:].send(sockets[0])


def test_file_that_cannot_be_read_has_failed(tmp_path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    with (tmp_path / "unreadable").open("wb") as file:
        part = FilePart(file.fileno(), 5, 10, failed)
        for use in (part.read, lambda: part.send(sockets[0])):
            with pytest.raises(LocalError, match=f"5 {errno.EBADF}"):
                use()


def test_peer_that_is_gone_is_no_failure_of_the_file(fd: int, sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[1].close()
    with pytest.raises(BrokenPipeError):
        FilePart(fd, 0, 10, failed).send(sockets[0])
