# SPDX-License-Identifier: Apache-2.0
"""The examples of the pages by task do what they say, on a host whose socket, port and images are elsewhere."""

import os
from pathlib import Path

import pytest

from tests.docs.examples import check, sections
from tests.support.commands import install
from tests.support.daemon import PROJECT, Daemon, MakeDaemon
from tests.support.images import MiB, pattern

DOCS = PROJECT / "docs"
TROUBLE = DOCS / "troubleshooting.md"
SIZE = 64 * MiB


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    """A daemon without the tickets of other tests."""
    return make_daemon()


@pytest.fixture
def environment(own: Daemon, tmp_path: Path) -> dict[str, str]:
    """The host of the pages: its commands find the daemon, and nobody has to be root."""
    programs = tmp_path / "bin"
    install(programs)
    control = programs / "imageioctl"
    control.write_text(control.read_text().replace('"$@"', f'"$@" --socket {own.control_socket}'))
    chown = programs / "chown"
    chown.symlink_to("/bin/true")
    return {"NAME": "localhost", "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}


def test_first_transfer(own: Daemon, environment: dict[str, str], tmp_path: Path) -> None:
    page = DOCS / "first-transfer.md"
    disk = tmp_path / "disk.raw"
    disk.write_bytes(pattern(2 * MiB))
    os.truncate(disk, 1024 * MiB)
    (tmp_path / "ca.pem").write_bytes(own.cafile.read_bytes())
    text = page.read_text().replace("/images/target.raw", f"{tmp_path}/target.raw").replace(":54322", f":{own.port}")
    check(page, [example for examples in sections(text).values() for example in examples], tmp_path, environment)


def test_certificate_of_an_own_authority(environment: dict[str, str], tmp_path: Path) -> None:
    page = DOCS / "certificate.md"
    check(page, sections(page.read_text())["An authority of your own"], tmp_path, environment)


def test_limits(own: Daemon, environment: dict[str, str], tmp_path: Path) -> None:
    page = DOCS / "limits.md"
    own.add_ticket("/images/disk.raw", SIZE, transfer_id="job-17")
    check(page, sections(page.read_text())["Limits"], tmp_path, environment)


@pytest.mark.parametrize("heading", sections(TROUBLE.read_text()))
def test_troubleshooting(own: Daemon, environment: dict[str, str], tmp_path: Path, heading: str) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(bytes(SIZE))
    ticket = own.add_ticket(disk, SIZE, ops=["read", "write"], transfer_id="job-17")
    with own.connect("unix") as client:
        assert client.get(f"/images/{ticket}", {"Range": "bytes=0-0"}).status == 206
        if heading == "It says 403":
            own.extend(ticket, 0)
        check(TROUBLE, sections(TROUBLE.read_text())[heading], tmp_path, environment)
