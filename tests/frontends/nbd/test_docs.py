# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/nbd.md do what it says: each is run as it stands there. Those that need
another kernel are run by the lab."""

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import PROJECT, Certificates, Daemon
from tests.support.images import pattern
from tests.support.polling import eventually

MiB = 1024 * 1024
SIZE = 16 * MiB

LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", (PROJECT / "docs" / "nbd.md").read_text(), re.DOTALL)
    for line in block.splitlines()
    if not line.startswith("export ")
]


@pytest.fixture(scope="module")
def nbd_daemon(certificates: Certificates) -> Iterator[Daemon]:
    socket = Path("/tmp") / f"nbd-{uuid.uuid4().hex[:8]}"
    with Daemon(certificates, {"nbd": {"enable": True, "port": 0, "socket": socket}}) as daemon:
        yield daemon


@pytest.fixture
def environment(nbd_daemon: Daemon, certificates: Certificates, tmp_path: Path) -> dict[str, str]:
    """What the document says is there: a ticket, images to copy, credentials."""
    image = tmp_path / "image"
    image.write_bytes(pattern(SIZE))
    shutil.copy(image, tmp_path / "disk.raw")
    if shutil.which("qemu-img"):
        subprocess.run(["qemu-img", "convert", "-O", "qcow2", "disk.raw", "disk.qcow2"], cwd=tmp_path, check=True)
    (tmp_path / "mnt").mkdir()
    (tmp_path / "pki").mkdir()
    shutil.copy(certificates.cafile, tmp_path / "pki" / "ca-cert.pem")
    local = nbd_daemon.log.find(r"service=nbd-local address=(\S+)")
    remote = nbd_daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert local is not None
    assert remote is not None
    ticket = nbd_daemon.add_ticket(image, SIZE, sparse=True)
    return {
        "TICKET": ticket,
        "SOCKET": local[1],
        "URI": f"nbd+unix:///{ticket}?socket={local[1]}",
        "HOST": "localhost",
        "PORT": remote[1],
    }


@pytest.mark.parametrize("line", LINES)
def test_command_works(line: str, environment: dict[str, str], tmp_path: Path) -> None:
    program = line.split(maxsplit=1)[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    if program == "nbdfuse":
        if not os.access("/dev/fuse", os.W_OK):
            pytest.skip("no FUSE here")
        _check_nbdfuse(line, environment, tmp_path)
        return
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for copy in tmp_path.glob("copy.raw"):
        assert copy.read_bytes() == pattern(SIZE)


def _check_nbdfuse(line: str, environment: dict[str, str], directory: Path) -> None:
    command = "exec " + line.removesuffix("&")
    with subprocess.Popen(["sh", "-c", command], cwd=directory, env={**os.environ, **environment}) as process:
        try:
            eventually((directory / "mnt" / "nbd").exists, "the file is there")
            assert (directory / "mnt" / "nbd").stat().st_size == SIZE
        finally:
            process.terminate()
            process.wait(20)


def test_lines_are_found() -> None:
    assert len(LINES) > 10
