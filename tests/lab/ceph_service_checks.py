# SPDX-License-Identifier: Apache-2.0
"""Images on Ceph by the service as systemd runs it. Run by tests/lab/ceph_service inside of a container, as root."""

import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.ceph_cluster import POOL, Cluster, connect_hosts
from tests.lab.installed import ETC, RUN, UNIT, configure, run, service, show, url
from tests.support.polling import eventually

MiB = 1 << 20
#: Of images: some objects of 4 MiB, and the beginning of one.
SIZE = 97 * MiB
PROGRAMS = service()
NBD = RUN / "nbd"

MORE = f"""\
[nbd]
enable = true
port = -1
socket = {NBD}
[backend_rbd]
allowed_pools = {POOL}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster, what the guide says, and the service."""
    connect_hosts()
    made = Cluster(Path("/cluster"))
    Path("/etc/ceph/ceph.conf").write_text(made.admin("config", "generate-minimal-conf"))
    run("env", f"CEPH_CONF={made.conf}", "sh", "-ex", "/key")
    configure(MORE)
    run("systemctl", "enable", "--now", UNIT)
    yield made
    made.stop()


@pytest.fixture
def image(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A new image of SIZE; its name with the pool."""
    name = f"{POOL}/" + re.sub(r"\W", "-", request.node.name)
    cluster.rbd("create", name, "--size", f"{SIZE}B")
    return name


@pytest.fixture
def source() -> Path:
    """A sparse file of SIZE."""
    path = Path("/var/tmp/source")
    with path.open("wb") as file:
        for offset, length in ((0, 5 * MiB), (22 * MiB + 4096, 3 * MiB), (SIZE - 4096, 4096)):
            file.seek(offset)
            file.write(random.Random(offset).randbytes(length))
    return path


def journal() -> str:
    """Return what the service has logged since its latest start."""
    run("journalctl", "--sync")
    return run("journalctl", "--quiet", "--output=cat", f"_SYSTEMD_INVOCATION_ID={show('InvocationID')}")


def extents(ticket: str, context: str) -> Any:
    command = ["curl", "--silent", "--show-error", "--fail", "--cacert", ETC / "cert.pem"]
    return json.loads(run(*command, f"{url(ticket)}/extents?context={context}"))


def add(image: str, *arguments: object) -> str:
    """Install a ticket for an image of SIZE, and return its id."""
    return PROGRAMS.add(f"rbd:{image}", "--size", SIZE, *arguments)


def test_check_as_the_user_of_the_service_reaches_pool_and_image(image: str) -> None:
    told = PROGRAMS.ctl("check", "--ready", f"rbd:{image}")
    assert "checked as imageio" in told
    assert re.search(f"^ok +ceph +pool {POOL}", told, re.MULTILINE), told
    assert re.search(f"^ok +image +rbd:{image}", told, re.MULTILINE), told


@pytest.mark.parametrize("way", [["--no-local"], []], ids=["tls", "local"])
def test_upload_and_download_arrive(cluster: Cluster, image: str, source: Path, way: list[str]) -> None:
    ticket = add(image)
    PROGRAMS.upload(source, ticket, "--verify", *way)
    assert cluster.export(image) == source.read_bytes()
    copy = Path("/var/tmp/copy")
    PROGRAMS.download(ticket, copy, "--verify", *way)
    assert copy.read_bytes() == source.read_bytes()
    copy.unlink()
    PROGRAMS.ctl("ticket remove", "--id", ticket)


def test_extents_tell_holes_and_changes(cluster: Cluster, image: str, source: Path) -> None:
    ticket = add(image)
    PROGRAMS.upload(source, ticket)
    assert [e["zero"] for e in extents(ticket, "zero")] == [False, True, False, True, False]
    cluster.rbd("snap", "create", f"{image}@one")
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    run("dd", "if=/dev/urandom", f"of={source}", "bs=1M", "count=1", "seek=41", "conv=notrunc")
    ticket = add(image)
    PROGRAMS.upload(source, ticket)
    cluster.rbd("snap", "create", f"{image}@two")
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    ticket = add(f"{image}@two", "--read-only", "--since", "one")
    assert any(e["dirty"] and e["start"] <= 41 * MiB < e["start"] + e["length"] for e in extents(ticket, "dirty"))
    PROGRAMS.ctl("ticket remove", "--id", ticket)


def test_nbd_client_copies(cluster: Cluster, image: str, source: Path) -> None:
    ticket = add(image)
    run("nbdcopy", "--flush", source, f"nbd+unix:///{ticket}?socket={NBD}")
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    assert cluster.export(image) == source.read_bytes()


def test_configuration_of_other_clients_is_no_obstacle(image: str, source: Path) -> None:
    """Files that the service may not make: what virtual machines are told to have."""
    conf = Path("/etc/ceph/ceph.conf")
    minimal = conf.read_text()
    conf.write_text(
        minimal
        + "[client]\nadmin socket = /run/ceph/$cluster-$type.$id.$pid.$cctid.asok\nlog file = /var/log/ceph/$name.log\n"
    )
    try:
        ticket = add(image)
        PROGRAMS.upload(source, ticket, "--verify")
        PROGRAMS.ctl("ticket remove", "--id", ticket)
    finally:
        conf.write_text(minimal)


def test_journal_has_no_complaint() -> None:
    lines = journal()
    print(lines)
    assert not re.search("denied|not permitted|Read-only|failed|error|warning", lines, re.IGNORECASE)


def test_killed_service_is_restarted_and_writes(cluster: Cluster, image: str, source: Path) -> None:
    ticket = add(image)
    PROGRAMS.upload(source, ticket)
    kill_service()
    run("dd", "if=/dev/urandom", f"of={source}", "bs=1M", "count=97")
    PROGRAMS.upload(source, ticket, "--restart")
    PROGRAMS.ctl("ticket remove", "--id", ticket)
    assert cluster.export(image) == source.read_bytes()


def test_what_opens_an_image_is_killed_with_the_service(cluster: Cluster, image: str) -> None:
    """It takes no SIGTERM while OSDs do not answer."""
    ticket = add(image)
    cluster.signal_osd(signal.SIGSTOP)
    try:
        with subprocess.Popen(["curl", "--silent", "--cacert", ETC / "cert.pem", url(ticket)]) as asking:
            eventually(
                lambda: image.partition("/")[2] in run("pgrep", "-fa", "^qemu-nbd", ok=False), "it opens the image"
            )
            kill_service()
            assert not run("pgrep", "-fa", "^qemu-nbd", ok=False)
            asking.kill()
    finally:
        cluster.signal_osd(signal.SIGCONT)


def kill_service() -> None:
    """Kill the daemon, and wait until systemd has started it again."""
    before = show("MainPID")
    os.kill(int(before), signal.SIGKILL)
    eventually(
        lambda: show("MainPID") not in ("0", before) and show("ActiveState") == "active", "it is back", timeout=20
    )
