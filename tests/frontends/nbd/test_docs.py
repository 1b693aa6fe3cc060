# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/nbd.md do what it says: each is run as it stands there. Those that need
another kernel are run by the lab."""

import grp
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import PROJECT, Certificates, Daemon
from tests.support.images import pattern
from tests.support.polling import eventually

MiB = 1024 * 1024
SIZE = 16 * MiB

LINES: list[str] = [
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


@pytest.fixture
def changed(nbd_daemon: Daemon, tmp_path: Path) -> dict[str, str]:
    """A ticket for an image that tells what has changed."""
    image = tmp_path / "changed.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, str(SIZE)], check=True)
    subprocess.run(["qemu-img", "bitmap", "--add", "-f", "qcow2", image, "since"], check=True)
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -q 1M 1M", image], check=True)
    ticket = nbd_daemon.add_ticket(image, SIZE, format="qcow2", dirty=True, bitmap="since", ops=["read"])
    return {"TICKET": ticket, "BITMAP": "since"}


@pytest.mark.parametrize("line", LINES)
def test_command_works(line: str, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "$BITMAP" in line:
        environment |= request.getfixturevalue("changed")
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


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a certificate that has signed itself, as imageioctl makes it."""
    directory = tmp_path_factory.mktemp("self-signed")
    options = ("--self-signed", "localhost", "--directory", directory, "--group", grp.getgrgid(os.getgid()).gr_name)
    subprocess.run([sys.executable, "-m", "imageio_daemon.control.cli", "certificate", *options], check=True)
    return directory


@pytest.fixture(scope="module")
def self_signed(certificates: Certificates, own_certificate: Path) -> Iterator[Daemon]:
    tls = {"cert_file": own_certificate / "cert.pem", "key_file": own_certificate / "key.pem"}
    with Daemon(certificates, {"nbd": {"enable": True, "port": 0}, "tls": tls}) as daemon:
        yield daemon


@pytest.fixture
def with_it(self_signed: Daemon, own_certificate: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of the document, and the certificate in the place of the authority's."""
    (tmp_path / "image").write_bytes(pattern(MiB))
    (tmp_path / "pki").mkdir()
    shutil.copy(own_certificate / "cert.pem", tmp_path / "pki" / "ca-cert.pem")
    remote = self_signed.log.find(r"service=nbd address=.*port=(\d+)")
    assert remote is not None
    ticket = self_signed.add_ticket(tmp_path / "image", MiB)
    return {**os.environ, "HOST": "localhost", "PORT": remote[1], "TICKET": ticket}


def first(start: str) -> str:
    """Return the first line from another host that begins so."""
    return next(line for line in LINES if line.startswith(start) and "$HOST" in line)


@pytest.mark.skipif(shutil.which("nbdcopy") is None, reason="needs nbdcopy")
@pytest.mark.parametrize("program", ["nbdinfo", "nbdcopy"])
def test_libnbd_takes_a_certificate_that_has_signed_itself(
    with_it: dict[str, str], tmp_path: Path, program: str
) -> None:
    subprocess.run(["sh", "-c", first(program)], cwd=tmp_path, env=with_it, check=True, timeout=60)


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
def test_qemu_needs_an_authority(with_it: dict[str, str], tmp_path: Path) -> None:
    line = first("qemu-img info")
    refused = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=with_it, capture_output=True, text=True, check=False, timeout=60
    )
    assert "basic constraints do not show a CA" in refused.stderr
    without = line.replace("dir=pki", "dir=pki,sanity-check=no")
    subprocess.run(["sh", "-c", without], cwd=tmp_path, env=with_it, check=True, timeout=60)


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
def test_qemu_without_its_check_still_verifies_the_server(
    with_it: dict[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    shutil.copy(certificates.cafile, tmp_path / "pki" / "ca-cert.pem")
    line = first("qemu-img info").replace("dir=pki", "dir=pki,sanity-check=no")
    refused = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=with_it, capture_output=True, text=True, check=False, timeout=60
    )
    assert "certificate hasn't got a known issuer" in refused.stderr


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
