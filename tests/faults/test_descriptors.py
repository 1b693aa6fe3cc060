# SPDX-License-Identifier: Apache-2.0
"""A daemon that may have few descriptors: the control socket and clients with tickets are served, whoever connects."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.crowd import crowd
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.images import KiB, MakeImage, MiB, make_image

#: Open files that the daemon may have: enough for some twenty connections.
FEW = 256
#: What is in use when it serves nobody must leave room for the rest.
IDLE = 80
SERVICES: dict[str, Section] = {
    "daemon": {"max_connections": 8},
    "nbd": {"enable": True, "port": 0},
    "metrics": {"enable": True, "port": 0},
}


@contextmanager
def limited(certificates: Certificates, soft: int, hard: int, config: dict[str, Section]) -> Iterator[Daemon]:
    wrapper = ("prlimit", f"--nofile={soft}:{hard}", "--")
    with Daemon(certificates, config, wrapper=wrapper) as daemon:
        yield daemon


@pytest.fixture
def few(certificates: Certificates) -> Iterator[Daemon]:
    with limited(certificates, FEW, FEW, SERVICES) as daemon:
        yield daemon


def limit_of(pid: int) -> list[str]:
    """Return the soft and the hard limit on open files of a process (proc(5))."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.split()[3:5] for line in lines if line.startswith("Max open files"))


def serves(daemon: Daemon, new_image: MakeImage) -> None:
    """Require that a ticket is installed, and used over each socket."""
    image = new_image(size=64 * KiB)
    for kind in ("tls", "unix"):
        with daemon.connect(kind) as client:
            assert client.put(image.url, b"x" * 4096, {"Content-Range": "bytes 0-4095/*"}).status == 200
            assert client.get(image.url, {"Range": "bytes=0-4095"}).body == b"x" * 4096
    assert daemon.control("GET", "/status").status == 200


def test_the_soft_limit_becomes_the_hard_one(certificates: Certificates) -> None:
    with limited(certificates, 64, 2048, {}) as daemon:
        assert limit_of(daemon.pid) == ["2048", "2048"]


def test_programs_that_the_daemon_starts_have_the_soft_limit_as_it_was(
    certificates: Certificates, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    subprocess.run(["qemu-img", "create", "-q", "-f", "vmdk", image, "1M"], check=True)
    with limited(certificates, 512, 4096, {}) as daemon:
        ticket = daemon.add_ticket(image, MiB, format="vmdk")
        with daemon.connect("unix") as client:
            assert client.get(f"/images/{ticket}").status == 200
            tasks = Path(f"/proc/{daemon.pid}/task").iterdir()
            children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
            assert [limit_of(child) for child in children] == [["512", "4096"]]


def test_a_small_limit_is_told(few: Daemon) -> None:
    few.log.wait_for("256 open files are enough for")


def test_an_idle_daemon_has_most_of_its_descriptors_left(few: Daemon) -> None:
    assert len(os.listdir(f"/proc/{few.pid}/fd")) < IDLE


@pytest.mark.parametrize("kind", ["silent", "hello", "info"])
def test_strangers_keep_nobody_out(few: Daemon, tmp_path: Path, kind: str) -> None:
    new_image = make_image(few, tmp_path)
    with crowd(few.port, kind, connections=400):
        for _ in range(5):
            serves(few, new_image)
    assert "cannot accept" not in few.log.text()


def test_strangers_on_the_local_socket_keep_nobody_out(few: Daemon, tmp_path: Path) -> None:
    new_image = make_image(few, tmp_path)
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(few.connect("unix"))
        serves(few, new_image)


def test_clients_of_nbd_without_a_ticket_keep_nobody_out(few: Daemon, tmp_path: Path) -> None:
    new_image = make_image(few, tmp_path)
    with crowd(few._port_of("nbd"), "nbd", connections=400):
        serves(few, new_image)
