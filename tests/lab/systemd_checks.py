# SPDX-License-Identifier: Apache-2.0
"""The service as systemd runs it. Run by tests/lab/systemd inside of a container, as root, with Debian's pytest."""

import contextlib
import os
import pwd
import re
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.installed import (
    ETC,
    IMAGES,
    RUN,
    UNIT,
    configure,
    make_certificate,
    new_image,
    run,
    service,
    show,
    url,
    write_source,
)
from tests.support.polling import eventually
from tests.support.processes import thread_names

PROGRAMS = service()
CONTROL = RUN / "sock"
NBD = RUN / "nbd"
#: A block device that the container was given.
DISK = Path("/dev/disk")
SIZE = 16 * 1024**2
#: Seconds until systemd has restarted the service, or it has stopped.
RESTART_TIMEOUT = 20.0

MORE = f"""\
[daemon]
shutdown_timeout = 5
[nbd]
enable = true
port = -1
socket = {NBD}
"""

DROP_IN = """\
[Service]
SupplementaryGroups=disk
"""


def main_pid() -> int:
    return int(show("MainPID"))


def journal() -> str:
    """Return what the service has logged since its latest start."""
    run("journalctl", "--sync")
    return run("journalctl", "--quiet", "--output=cat", f"_SYSTEMD_INVOCATION_ID={show('InvocationID')}")


def processes() -> list[int]:
    """Return the processes of the unit."""
    group = Path("/sys/fs/cgroup/systemd" if Path("/sys/fs/cgroup/systemd").exists() else "/sys/fs/cgroup")
    procs = Path(f"{group}{show('ControlGroup')}/cgroup.procs")
    return [int(line) for line in procs.read_text().splitlines()] if procs.exists() else []


def status_of(pid: int) -> dict[str, str]:
    """Return /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def served_certificate() -> str:
    command = "openssl s_client -connect localhost:54322 </dev/null 2>/dev/null | openssl x509 -noout -fingerprint"
    return run("sh", "-c", command)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Do the rest of what the guide says."""
    configure(MORE)
    drop_in = Path(f"/etc/systemd/system/{UNIT}.service.d")
    drop_in.mkdir()
    (drop_in / "override.conf").write_text(DROP_IN)
    IMAGES.mkdir()
    user = pwd.getpwnam("imageio")
    os.chown(IMAGES, user.pw_uid, user.pw_gid)
    run("chgrp", "disk", DISK)
    run("chmod", "660", DISK)
    run("sh", "-ex", "/start")


@pytest.fixture(autouse=True)
def running(installed: None) -> None:
    """Start each test with a service that runs and has no tickets."""
    run("systemctl", "reset-failed", UNIT)
    run("systemctl", "restart", UNIT)
    PROGRAMS.ctl("ticket remove", "--all", "--yes")  # those that outlive the restart


@pytest.fixture
def source() -> Iterator[Path]:
    path = write_source(Path("/var/tmp/source"), SIZE)
    yield path
    path.unlink()


@pytest.fixture
def image() -> Iterator[Path]:
    path = new_image(IMAGES / "image", SIZE)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def vmdk(image: Path) -> Path:
    """An empty vmdk of the service's user."""
    run("qemu-img", "create", "-f", "vmdk", image, SIZE)
    return image


def add_ticket(image: Path, image_format: str) -> str:
    return PROGRAMS.add(image, "--format", image_format, "--size", str(SIZE), "--write-only")


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


# Start


def test_start_returns_when_all_services_listen() -> None:
    assert show("ActiveState") == "active"
    assert served_certificate()
    assert CONTROL.is_socket()
    assert NBD.is_socket()


def test_status_tells_where_it_listens() -> None:
    assert "remote on" in show("StatusText")


def test_service_starts_at_boot() -> None:
    assert run("systemctl", "is-enabled", UNIT) == "enabled"


def test_bad_configuration_is_told_and_not_tried_again() -> None:
    bad = ETC / "conf.d" / "99-bad.conf"
    bad.write_text("[remote]\nport = http\n")
    try:
        run("systemctl", "restart", UNIT, ok=False)
        assert (show("ActiveState"), show("ExecMainStatus"), show("NRestarts")) == ("failed", "2", "0")
        assert f"{bad}:2" in journal()
    finally:
        bad.unlink()


# What it may do


def test_it_is_its_user_and_no_capability_is_left() -> None:
    status = status_of(main_pid())
    assert status["Uid"].split() == [str(pwd.getpwnam("imageio").pw_uid)] * 4
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_run_directory_and_sockets_have_their_modes() -> None:
    for path, mode in ((CONTROL.parent, 0o755), (CONTROL, 0o660), (NBD, 0o660)):
        status = path.stat()
        assert (path.owner(), path.group(), stat.S_IMODE(status.st_mode)) == ("imageio", "imageio", mode), path


@pytest.mark.parametrize("directory", ["/home", "/tmp", "/root"])
def test_images_in_hidden_directories_cannot_be_opened(directory: str) -> None:
    path = Path(directory) / "hidden"
    path.write_bytes(bytes(4096))
    path.chmod(0o666)
    assert status_of_upload(PROGRAMS.add(path)) == "500"
    assert re.search(f"open {path}: open: (No such file|Permission denied)", journal())


@pytest.mark.parametrize("directory", [Path("/etc"), ETC, Path("/usr/share")])
def test_images_in_directories_of_the_system_cannot_be_written(directory: Path) -> None:
    path = directory / "image"
    path.write_bytes(bytes(4096))
    path.chmod(0o666)
    assert status_of_upload(PROGRAMS.add(path)) == "500"
    assert "Read-only file system" in journal()
    path.unlink()


def status_of_upload(ticket: str) -> str:
    command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", ETC / "cert.pem"]
    return run(*command, "-T", "/etc/hostname", url(ticket))


def test_security_is_as_good_as_it_was() -> None:
    """3.0 is what is wanted; the text goes into the log of the run."""
    told = run("systemd-analyze", "security", "--no-pager", UNIT)
    print(told)
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert match is not None
    assert float(match[1]) <= 3.0


# Transfers


@pytest.mark.parametrize("way", [["--no-local"], []], ids=["tls", "local"])
def test_upload_arrives(source: Path, image: Path, way: list[str]) -> None:
    PROGRAMS.upload(source, PROGRAMS.add(image), "--verify", *way)
    assert same(source, image)


def test_download_arrives(source: Path, image: Path) -> None:
    image.write_bytes(source.read_bytes())
    copy = Path("/var/tmp/copy")
    ticket = PROGRAMS.add(image)
    PROGRAMS.download(ticket, copy)
    assert same(source, copy)
    copy.unlink()


def test_block_device_is_written_and_zeroed(source: Path) -> None:
    run("dd", "if=/dev/urandom", f"of={DISK}", "bs=1M", "count=16", "conv=fsync")
    PROGRAMS.upload(source, PROGRAMS.add(DISK, "--size", SIZE), "--verify")
    with DISK.open("rb") as file:
        assert file.read(SIZE) == source.read_bytes()


def test_nbd_client_copies(source: Path, image: Path) -> None:
    run("nbdcopy", "--flush", source, f"nbd+unix:///{PROGRAMS.add(image)}?socket={NBD}")
    assert same(source, image)


def test_nbd_client_is_served_by_threads_in_c(image: Path) -> None:
    uri = f"nbd+unix:///{PROGRAMS.add(image)}?socket={NBD}"
    with subprocess.Popen(["qemu-io", "-f", "raw", uri], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as client:
        eventually(lambda: "nbd-lane" in thread_names(main_pid()), "a lane serves it")
        client.communicate(b"quit\n", timeout=60)
    eventually(lambda: "nbd-lane" not in thread_names(main_pid()), "its threads have ended")


def test_qcow2_is_served_by_the_service_itself(source: Path, image: Path) -> None:
    run("qemu-img", "create", "-f", "qcow2", image, SIZE)
    ticket = add_ticket(image, "qcow2")
    PROGRAMS.upload(source, ticket, "--verify")
    assert processes() == [main_pid()]
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    run("qemu-img", "check", "-f", "qcow2", image)
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", source, image)


def test_another_format_is_served_by_qemu_nbd_without_capabilities(source: Path, vmdk: Path) -> None:
    ticket = add_ticket(vmdk, "vmdk")
    PROGRAMS.upload(source, ticket, "--verify")
    servers = [pid for pid in processes() if status_of(pid)["Name"] == "qemu-nbd"]
    assert [(status_of(pid)["CapEff"], status_of(pid)["Seccomp"]) for pid in servers] == [("0" * 16, "2")]
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    run("qemu-img", "check", "-f", "vmdk", vmdk)
    run("qemu-img", "compare", "-f", "raw", "-F", "vmdk", source, vmdk)


# The checks of the host


def test_check_as_the_user_of_the_service_finds_nothing_wrong(image: Path) -> None:
    told = PROGRAMS.ctl("check", "--ready", image, DISK)  # the device is for a group that the unit adds
    assert "checked as imageio" in told
    wrong = [line.split()[:2] for line in told.splitlines()[1:] if not line.startswith("ok ")]
    assert wrong == [["warning", "certificate"]], told  # of two days


def test_check_finds_a_key_that_the_service_cannot_read() -> None:
    key = ETC / "key.pem"
    key.chmod(0o600)
    try:
        assert re.search("^failed +certificate", PROGRAMS.ctl("check", ok=False), re.MULTILINE)
        assert "failed: certificate: " in run("imageio-daemon", "--check-config", ok=False)
    finally:
        key.chmod(0o640)


# The log


def test_journal_has_the_transfer_and_no_ticket(source: Path, image: Path) -> None:
    ticket = PROGRAMS.add(image, "--transfer-id", "of-the-lab")
    PROGRAMS.upload(source, ticket)
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    lines = journal()
    assert re.search(r"transfer ended.*transfer=of-the-lab", lines)
    assert ticket not in lines


# Reload, restart, stop


def test_reload_serves_the_renewed_certificate() -> None:
    before, pid = served_certificate(), main_pid()
    make_certificate(ETC, "imageio")
    run("systemctl", "reload", UNIT)
    eventually(lambda: served_certificate() != before, "the new certificate is served")
    assert main_pid() == pid


def test_reload_leaves_a_running_transfer_alone(image: Path) -> None:
    with half_an_upload(image) as connection:
        run("systemctl", "reload", UNIT)
        connection.sendall(bytes(SIZE // 2))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_killed_service_is_restarted_and_serves(source: Path, vmdk: Path) -> None:
    PROGRAMS.upload(source, add_ticket(vmdk, "vmdk"))
    before = processes()
    assert len(before) == 2
    os.kill(main_pid(), signal.SIGKILL)
    # In this order: until systemd notices, the state is the old one; then there is no process for a while.
    eventually(
        lambda: main_pid() not in (0, *before) and show("ActiveState") == "active",
        "it is back",
        timeout=RESTART_TIMEOUT,
    )
    assert processes() == [main_pid()]  # qemu-nbd has gone with it
    assert not list(CONTROL.parent.glob("qemu-nbd-*"))
    PROGRAMS.upload(source, add_ticket(vmdk, "vmdk"), "--verify")


def test_stop_waits_for_a_request_that_goes_on(image: Path) -> None:
    with half_an_upload(image) as connection:
        run("systemctl", "stop", "--no-block", UNIT)
        eventually(lambda: "stopping" in journal(), "it is told to stop")
        connection.sendall(bytes(SIZE // 2))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    eventually(lambda: show("ActiveState") == "inactive", "it stops")
    assert (show("Result"), show("ExecMainStatus")) == ("success", "0")
    assert not CONTROL.parent.exists()


def test_stop_interrupts_a_request_that_does_not_go_on(image: Path) -> None:
    with half_an_upload(image) as connection:
        run("systemctl", "stop", UNIT)
        assert connection.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert (show("Result"), show("ExecMainStatus")) == ("success", "0")


def test_restart_keeps_tickets_and_waiting_clients(image: Path) -> None:
    ticket, address = PROGRAMS.add(image), ("localhost", 54322)
    context = ssl.create_default_context(cafile=str(ETC / "cert.pem"))
    run("systemctl", "restart", "--no-block", UNIT)
    pid = main_pid()
    for _ in range(200):  # while there is no process, too
        with socket.create_connection(address, timeout=60) as plain:
            if main_pid() not in (0, pid):
                break
            plain.close()
    with (
        socket.create_connection(address, timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(f"OPTIONS /images/{ticket} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_drained_service_ends_with_success(image: Path) -> None:
    run("systemctl", "kill", "--signal=USR1", UNIT)
    # A ticket that was used a moment ago, before the last restart too, is in use for 10 s.
    eventually(lambda: show("ActiveState") == "inactive", "it ends", timeout=30)
    assert (show("Result"), show("ExecMainStatus")) == ("success", "0")


def test_stop_ends_what_does_not_end_itself(source: Path, vmdk: Path) -> None:
    PROGRAMS.upload(source, add_ticket(vmdk, "vmdk"))
    (server,) = (pid for pid in processes() if status_of(pid)["Name"] == "qemu-nbd")
    os.kill(server, signal.SIGSTOP)
    run("systemctl", "stop", UNIT)
    assert show("ExecMainStatus") == "1"
    assert not Path(f"/proc/{server}").exists()


@contextlib.contextmanager
def half_an_upload(image: Path) -> Iterator[ssl.SSLSocket]:
    """Send the first half of an upload, wait until it is served, and yield the connection."""
    ticket = PROGRAMS.add(image)
    context = ssl.create_default_context(cafile=str(ETC / "cert.pem"))
    with (
        socket.create_connection(("localhost", 54322), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        head = f"PUT /images/{ticket} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SIZE}\r\n\r\n"
        connection.sendall(head.encode() + bytes(SIZE // 2))
        eventually(lambda: '"active": true' in PROGRAMS.ctl("ticket show", "--json", "--id", ticket), "the upload runs")
        yield connection
