# SPDX-License-Identifier: Apache-2.0
"""Images that other programs use: what writes to them is refused, what reads is not."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.daemon import ticket as ticket_of
from tests.support.http_client import Connection
from tests.support.images import KiB, MiB, pattern
from tests.support.locks import GUEST, locked, locks, served
from tests.support.nbdservers import make_qcow2
from tests.support.places import QCOW2
from tests.support.realstorage import loop_device, missing

pytestmark = pytest.mark.unopened

LOCKED = "The image is in use: another program has locked it, as a running virtual machine does\n"
MOUNTED = "The image is in use: the device is mounted, or part of another device\n"
CONTENT = pattern(MiB)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def remote(daemon: Daemon) -> Iterator[Connection]:
    with daemon.connect("unix") as connection:
        yield connection


@contextmanager
def mounted(device: Path, target: Path) -> Iterator[None]:
    subprocess.check_call(["mkfs.ext4", "-q", device])
    target.mkdir()
    subprocess.check_call(["mount", device, target])
    try:
        yield
    finally:
        subprocess.check_call(["umount", target])


def refused(daemon: Daemon, ticket: str) -> bool:
    """Tell whether a write is refused, with everything that says why."""
    with daemon.connect("unix") as client:
        answer = client.put_at(f"/images/{ticket}", 0, b"x")
    if answer.status == 200:
        return False
    assert (answer.status, answer.code, answer.text) == (409, "image_in_use", LOCKED)
    return True


# Files


def test_write_to_an_image_that_qemu_has_is_refused_until_it_ends(daemon: Daemon, path: Path) -> None:
    ticket = daemon.add_ticket(path, MiB)
    start = daemon.log.end()
    with served(path, "raw"):
        assert refused(daemon, ticket)
        daemon.log.wait_for("WARNING.*The image is in use.*transfer=", start=start)
        assert path.read_bytes() == CONTENT
    assert not refused(daemon, ticket)


def test_every_method_of_a_ticket_that_writes_is_refused(daemon: Daemon, remote: Connection, path: Path) -> None:
    url = f"/images/{daemon.add_ticket(path, MiB)}"
    with locked(path, *GUEST):
        for answer in (
            remote.get(url),
            remote.request("OPTIONS", url),
            remote.get(f"{url}/extents"),
            remote.patch(url, {"op": "zero", "offset": 0, "size": KiB}),
            remote.patch(url, {"op": "flush"}),
        ):
            assert (answer.status, answer.code) == (409, "image_in_use")


def test_ticket_that_reads_has_the_image_of_a_virtual_machine(daemon: Daemon, remote: Connection, path: Path) -> None:
    ticket = daemon.add_ticket(path, MiB, ops=["read"])
    with locked(path, *GUEST):
        assert remote.get(f"/images/{ticket}").body == CONTENT
        assert locks(path) == set(GUEST)


def test_shared_ticket_writes_to_the_image_of_a_virtual_machine(daemon: Daemon, path: Path) -> None:
    ticket = daemon.add_ticket(path, MiB, shared=True)
    with locked(path, *GUEST):
        assert not refused(daemon, ticket)
    assert daemon.control("GET", f"/tickets/{ticket}").json()["shared"] is True


def test_virtual_machine_does_not_start_on_an_image_that_is_written(daemon: Daemon, path: Path) -> None:
    ticket = daemon.add_ticket(path, MiB)
    assert not refused(daemon, ticket)
    command = ["qemu-io", "-f", "raw", "-c", "write 0 512", str(path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    daemon.remove(ticket)
    assert locks(path) == set()
    subprocess.run(command, capture_output=True, check=True)


def test_second_ticket_that_writes_is_served_and_logged(daemon: Daemon, path: Path) -> None:
    first, second = (daemon.add_ticket(path, MiB) for _ in range(2))
    start = daemon.log.end()
    assert not refused(daemon, first)
    assert daemon.log.find("is written to by", start=start) is None
    assert not refused(daemon, second)
    daemon.log.wait_for("WARNING.*image is written to by 2 tickets at a time", start=start)
    daemon.remove(first)
    assert locks(path) != set()
    assert not refused(daemon, second)


def test_configuration_that_locks_nothing(make_daemon: MakeDaemon, path: Path) -> None:
    own = make_daemon(backend_file={"lock": "false"})
    ticket = own.add_ticket(path, MiB)
    with locked(path, *GUEST):
        assert not refused(own, ticket)


# Daemons


def test_one_of_two_daemons_writes_to_an_image(make_daemon: MakeDaemon, path: Path) -> None:
    first, second = make_daemon(), make_daemon()
    tickets = first.add_ticket(path, MiB), second.add_ticket(path, MiB)
    assert not refused(first, tickets[0])
    assert refused(second, tickets[1])
    first.remove(tickets[0])
    assert not refused(second, tickets[1])


def test_killed_daemon_leaves_no_lock_and_the_next_one_goes_on(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    own = make_daemon(daemon={"state_dir": tmp_path / "state"})
    ticket = own.add_ticket(path, MiB)
    assert not refused(own, ticket)
    own.kill()
    assert locks(path) == set()
    own.restart()
    assert not refused(own, ticket)
    assert locks(path) != set()


def test_expired_ticket_has_no_lock(make_daemon: MakeDaemon, path: Path) -> None:
    own = make_daemon()
    ticket = own.add_ticket(path, MiB)
    assert not refused(own, ticket)
    own.extend(ticket, 0)
    own.log.wait_for("expired, its image is closed")
    assert locks(path) == set()


# Devices


@pytest.mark.skipif(bool(missing("ext4")), reason=missing("ext4"))
def test_mounted_device_is_refused(daemon: Daemon, remote: Connection, tmp_path: Path) -> None:
    backing = tmp_path / "backing"
    with backing.open("wb") as file:
        file.truncate(16 * MiB)
    with loop_device(backing) as device, mounted(device, tmp_path / "target"):
        ticket = daemon.add_ticket(device, 16 * MiB)
        answer = remote.patch(f"/images/{ticket}", {"op": "flush"})
        assert (answer.status, answer.code, answer.text) == (409, "image_in_use", MOUNTED)
        reading = daemon.add_ticket(device, 16 * MiB, ops=["read"])
        assert remote.get(f"/images/{reading}", {"Range": "bytes=0-511"}).status == 206
        daemon.remove(reading)


# Formats


def test_write_to_a_qcow2_image_that_qemu_has_is_refused_until_it_ends(daemon: Daemon, tmp_path: Path) -> None:
    image = make_qcow2(tmp_path / "image.qcow2", MiB)
    ticket = daemon.add_ticket(image, MiB, format="qcow2")
    start = daemon.log.end()
    with served(image, "qcow2"):
        assert refused(daemon, ticket)
    if QCOW2 == "qemu-nbd":  # what that says
        daemon.log.wait_for("ERROR.*Is another process using the image", start=start)
    assert not refused(daemon, ticket)
    daemon.remove(ticket)


def test_qcow2_image_that_is_written_is_read_only_by_a_shared_ticket(
    daemon: Daemon, remote: Connection, tmp_path: Path
) -> None:
    image = make_qcow2(tmp_path / "image.qcow2", MiB)
    alone, shared = (daemon.add_ticket(image, MiB, format="qcow2", ops=["read"], shared=way) for way in (False, True))
    start = daemon.log.end()
    with served(image, "qcow2"):
        answer = remote.get(f"/images/{alone}")
        assert (answer.status, answer.code, answer.text) == (409, "image_in_use", LOCKED)
        assert remote.get(f"/images/{shared}").body == bytes(MiB)
    if QCOW2 == "qemu-nbd":  # what that says
        daemon.log.wait_for("ERROR.*Is another process using the image", start=start)
    for ticket in (alone, shared):
        daemon.remove(ticket)


# Other ways


def test_nbd_refuses_the_export_with_the_reason(make_daemon: MakeDaemon, path: Path, tmp_path: Path) -> None:
    socket = tmp_path / "nbd"
    own = make_daemon(nbd={"enable": True, "host": "localhost", "port": 0, "socket": socket})
    uri = f"nbd+unix:///{own.add_ticket(path, MiB)}?socket={socket}"
    with locked(path, *GUEST):
        done = subprocess.run(["nbdinfo", "--size", uri], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        said = subprocess.run(["qemu-img", "info", uri], capture_output=True, text=True, check=False).stderr
        assert LOCKED.strip() in said
    done = subprocess.run(["nbdinfo", "--size", uri], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(MiB)


def test_refusal_of_another_host_is_passed_on(
    daemon: Daemon, remote: Connection, make_daemon: MakeDaemon, path: Path
) -> None:
    there = make_daemon()
    fields = ticket_of(path, MiB) | {"url": there.url(there.add_ticket(path, MiB))}
    ticket = daemon.put_ticket(fields)
    with locked(path, *GUEST):
        answer = remote.get(f"/images/{ticket}")
    assert (answer.status, answer.code) == (409, "image_in_use")
